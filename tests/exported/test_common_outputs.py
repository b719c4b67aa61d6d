"""Claims that transformers' own tests make of every model (`tests/test_modeling_common.py` there), about the outputs
of an export with relative position, in our own words.

What does not apply there, and why:

| checked there | why not here |
|---|---|
| caches, generation, causal and encoder-decoder models, left padding | the models are bidirectional encoders |
| `feed_forward_chunking`, `head_mask`, pruning | transformers 5 dropped the last two, ELECTRA's options; no chunking |
| flash and flex attention | neither takes a learned bias on scores here; both are refused by transformers, in words |
| composite models, vision and audio inputs, MoE | one encoder of text |
| `resize_position_embeddings`, `keep_in_fp32_modules`, tensor parallel plans | none is offered |
| several GPUs, DeepSpeed's ZeRO-3 initialization | no such machine in these tests; offloading is tested on a CPU |
| `torch.fx`, TensorFlow, Flax | gone from transformers |
"""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.exported.models import FEW, LENGTH, TINY, inputs, labels, loss, new_model

ALL = {"output_hidden_states": True, "output_attentions": True}
every_head = pytest.mark.parametrize("head", FEW)


@every_head
def test_the_first_argument_is_input_ids_and_an_unknown_one_is_refused(head: str) -> None:
    model = new_model(head)
    assert next(iter(inspect.signature(model.forward).parameters)) == model.main_input_name == "input_ids"
    with pytest.raises(TypeError, match="misspelled"):
        model(**inputs(head), misspelled=True)


@every_head
def test_a_tuple_holds_what_the_output_holds_in_its_order(head: str) -> None:
    model, given = new_model(head), inputs(head) | labels(head)
    for asked in ({}, {"output_hidden_states": True}, {"output_attentions": True}, ALL):
        named, plain = model(**given, **asked), model(**given, **asked, return_dict=False)
        assert isinstance(plain, tuple) and len(plain) == len(named)
        assert all(torch.equal(*pair) for pair in zip(flat(plain), flat(named.to_tuple()), strict=True))
    by_config = new_model(head, return_dict=False)(**given)
    assert isinstance(by_config, tuple) and torch.equal(by_config[0], model(**given)[0])


def flat(values: Any) -> list[Tensor]:
    return [values] if isinstance(values, Tensor) else [tensor for value in values for tensor in flat(value)]


@every_head
@pytest.mark.parametrize("how", ["argument", "config"])
def test_hidden_states_are_the_embeddings_and_each_layers(head: str, how: str) -> None:
    by_config, by_argument = ({}, {"output_hidden_states": True})[:: 1 if how == "argument" else -1]
    states = new_model(head, **by_config)(**inputs(head), **by_argument).hidden_states
    sequences = inputs(head)["input_ids"].flatten(0, -2).shape[0]
    assert [tuple(state.shape) for state in states] == [(sequences, LENGTH, TINY["hidden_size"])] * 3
    assert "hidden_states" not in new_model(head)(**inputs(head))


@every_head
@pytest.mark.parametrize("how", ["argument", "config"])
def test_attentions_are_last_one_per_layer_and_see_only_what_the_mask_shows(head: str, how: str) -> None:
    asked = {"output_attentions": True}
    settings = {"attn_implementation": "eager"} | asked if how == "config" else {}
    output = new_model(head, **settings)(**inputs(head), **asked if how == "argument" else {})
    assert list(output)[-1] == "attentions" and len(output.attentions) == TINY["num_hidden_layers"]
    hidden_BL = inputs(head)["attention_mask"].flatten(0, -2) == 0
    for weights in output.attentions:
        assert weights.shape == (len(hidden_BL), TINY["num_attention_heads"], LENGTH, LENGTH)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]))
        assert not weights.permute(0, 3, 1, 2)[hidden_BL].any()


@every_head
def test_states_and_attentions_keep_their_gradients(head: str) -> None:
    output = new_model(head)(**inputs(head), **ALL)
    kept = [output.hidden_states[0], output.attentions[0]]
    for tensor in kept:
        tensor.retain_grad()
    output[0].flatten()[0].backward()
    assert all(tensor.grad is not None for tensor in kept)


@every_head
def test_evaluation_is_deterministic_and_training_is_not(head: str) -> None:
    model = new_model(head)
    assert torch.equal(model(**inputs(head))[0], model(**inputs(head))[0])
    model.train()
    assert not torch.equal(model(**inputs(head))[0], model(**inputs(head))[0])


@every_head
def test_word_embeddings_may_come_in_the_place_of_ids(head: str) -> None:
    model, given = new_model(head), inputs(head)
    ids = given.pop("input_ids")
    embedded = model.get_input_embeddings()(ids)
    assert torch.equal(model(inputs_embeds=embedded, **given)[0], model(ids, **given)[0])


@every_head
def test_a_row_has_the_output_that_it_has_alone_and_without_its_padding(head: str) -> None:
    model, given = new_model(head), inputs(head)
    together = model(**given)[0]
    for row, length in enumerate((11, 8, 5)):
        alone = model(**{name: value[row : row + 1, ..., :length] for name, value in given.items()})[0]
        whole = together[row : row + 1]
        torch.testing.assert_close(alone, whole[:, :length] if whole.shape[1:2] == (LENGTH,) else whole)


@pytest.mark.parametrize(("head", "dtype"), [*((head, torch.float32) for head in FEW), ("Model", torch.bfloat16)])
def test_eager_attention_is_sdpa(head: str, dtype: torch.dtype) -> None:
    gradients = []
    for attention in ("eager", "sdpa"):
        model = new_model(head, attn_implementation=attention).to(dtype)
        loss(model, head).backward()
        gradients.append([model(**inputs(head))[0], *(weight.grad for weight in model.parameters())])
    tolerance: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    scale = max(gradient.abs().max().item() for gradient in gradients[0])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one / scale, other / scale, **tolerance)


@every_head
def test_the_attention_is_set_at_any_time_and_flash_attention_refused_in_words(head: str) -> None:
    model = new_model(head)
    before = model(**inputs(head))[0]
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    assert model.config._attn_implementation == model.base_model.config._attn_implementation == "eager"
    torch.testing.assert_close(model(**inputs(head))[0], before)
    with pytest.raises((ValueError, ImportError), match=r"(?i)flash"):
        new_model(head, attn_implementation="flash_attention_2")


@every_head
def test_every_weight_learns_from_a_loss(head: str) -> None:
    model = new_model(head)  # without dropout: its noise may outweigh one step
    loss(model, head).backward()
    unused = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    ignored = ("key.bias", "classifier.bias") if head == "ForMultipleChoice" else ("key.bias",)
    assert not [name for name in unused if not name.endswith(ignored)], "a softmax ignores what it adds to every score"
    before, optimizer = loss(model, head).item(), torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer.step()
    assert loss(model, head).item() < before


@every_head
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(head: str, reentrant: bool) -> None:
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "summary_last_dropout")
    model = new_model(head, **dict.fromkeys(rates, 0.0)).train()
    loss(model, head).backward()
    expected = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    assert not model.is_gradient_checkpointing
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert model.is_gradient_checkpointing
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = loss(model, head)
    assert not [tensor for tensor in kept if tensor.shape[-1:] == (TINY["intermediate_size"],)], (
        "a layer keeps its inside"
    )
    value.backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name])
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


@every_head
@pytest.mark.filterwarnings("ignore")
def test_traced_and_exported_programs_compute_the_same(head: str) -> None:
    model, given = new_model(head), inputs(head)
    expected = model(**given, return_dict=False)[0]
    traced = torch.jit.trace(new_model(head, return_dict=False), example_kwarg_inputs=given)
    torch.testing.assert_close(traced(**given)[0], expected)
    if head in ("Model", "ForMultipleChoice"):  # seconds each
        program = torch.export.export(model, (), given, strict=False)
        torch.testing.assert_close(program.module()(**given)[0], expected)
