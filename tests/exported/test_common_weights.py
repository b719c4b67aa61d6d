"""Claims that transformers' own tests make of every model, about the weights and configuration of an export
with relative position, in our own words; what does not apply: test_common_outputs.py.

Loaded weights are equal bit for bit, their outputs within rounding: a loaded weight lies at any multiple of its
element size, and a matrix product's last bit depends on the alignment of its operands.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from pretrain.huggingface import modeling_electra_sampler as code
from tests.exported.models import FEW, TINY, inputs, new_model

every_head = pytest.mark.parametrize("head", FEW)
every_task = pytest.mark.parametrize("head", FEW[1:])
COMPLETE: dict[str, set[str]] = {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set()}


def loaded(head: str, folder: Path, **settings: Any) -> Any:
    return getattr(code, f"ElectraSampler{head}").from_pretrained(folder, **settings)


def equal(one: Any, other: Any) -> bool:
    weights = other.state_dict()
    return one.state_dict().keys() == weights.keys() and all(
        torch.equal(weight, weights[name]) for name, weight in one.state_dict().items()
    )


@every_head
@pytest.mark.parametrize("shard", ["5GB", "5KB"])
def test_a_saved_model_loads_complete_and_computes_the_same(head: str, shard: str, tmp_path: Path) -> None:
    model = new_model(head)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    again, loading = loaded(head, tmp_path, output_loading_info=True)
    assert {name: set(loading[name]) for name in COMPLETE} == COMPLETE
    assert equal(again, model) and not again.training
    assert_close(again(**inputs(head))[0], model(**inputs(head))[0])
    stored = [name for path in tmp_path.glob("*.safetensors") for name in load_file(path)]
    assert len(stored) == len(set(stored)) == len(dict(model.named_parameters()))  # tied weights once
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "5KB")


@every_task
def test_weights_go_from_the_encoder_to_a_task_and_back(head: str, tmp_path: Path) -> None:
    encoder = new_model("Model")
    encoder.save_pretrained(tmp_path / "encoder")
    task, loading = loaded(head, tmp_path / "encoder", output_loading_info=True)
    assert equal(task.electra, encoder)
    missing = {name for name, _ in task.named_parameters() if not name.startswith("electra.")}
    assert set(loading["missing_keys"]) >= missing and not loading["unexpected_keys"]
    assert all(weight.isfinite().all() for weight in task.parameters())
    task.save_pretrained(tmp_path / "task")
    again, loading = loaded("Model", tmp_path / "task", output_loading_info=True)
    assert equal(again, encoder) and not loading["missing_keys"]


@every_head
def test_a_weight_that_is_missing_is_named_and_initialized(head: str, tmp_path: Path) -> None:
    new_model(head).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lacking = [name for name in weights if "layer.1.output" in name or "relative_attention_bias" in name]
    kept = {name: weight for name, weight in weights.items() if name not in lacking}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    again, loading = loaded(head, tmp_path, output_loading_info=True)
    assert set(loading["missing_keys"]) == set(lacking)
    assert all(torch.equal(again.state_dict()[name], weight) for name, weight in kept.items())
    fresh = {name: again.state_dict()[name] for name in lacking}
    assert all(weight.isfinite().all() and weight.abs().max() < 4 for weight in fresh.values())
    norms = {name: weight for name, weight in fresh.items() if "LayerNorm" in name}
    assert all(torch.equal(weight, torch.full((16,), float("weight" in name))) for name, weight in norms.items())


@every_head
def test_a_fresh_model_is_initialized_by_its_range(head: str) -> None:
    for name, weight in new_model(head, initializer_range=1e-9).named_parameters():
        if "relative_attention_bias" in name:
            assert 0.05 < weight.std() < 1  # T5's: one over the square root of the hidden size
        else:
            expected = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            assert (weight - expected).abs().max() < 1e-8, name


@every_head
def test_no_tensor_hides_outside_parameters_and_buffers(head: str) -> None:
    model = new_model(head).to("meta")
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    for module in model.modules():
        assert not [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]
    with torch.device("meta"):
        on_meta = new_model(head)
    on_meta.load_state_dict(new_model(head).state_dict(), assign=True)
    assert torch.equal(on_meta(**inputs(head))[0], new_model(head)(**inputs(head))[0])


@every_head
def test_the_vocabulary_grows_and_shrinks_with_what_is_tied_to_it(head: str, tmp_path: Path) -> None:
    model = new_model(head)
    before = model.get_input_embeddings().weight.detach().clone()
    for asked, expected in ({"new_num_tokens": 37}, 37), ({"new_num_tokens": 37, "pad_to_multiple_of": 8}, 40):
        model.resize_token_embeddings(**asked, mean_resizing=False)
        assert model.config.vocab_size == model.get_input_embeddings().num_embeddings == expected
        assert torch.equal(model.get_input_embeddings().weight[:30], before)
        if head == "ForMaskedLM":
            assert model.generator_lm_head.weight is model.electra.embeddings.word_embeddings.weight
            assert model.generator_lm_head.bias.shape == (expected,)
            assert model(**inputs(head)).logits.shape[-1] == expected
    given = inputs(head)
    given["input_ids"] = given["input_ids"] + 7
    output = model(**given)[0]
    model.save_pretrained(tmp_path)
    again = loaded(head, tmp_path)
    assert equal(again, model)
    assert_close(again(**given)[0], output)
    model.resize_token_embeddings(20)
    assert torch.equal(model.get_input_embeddings().weight, before[:20])


def test_an_output_matrix_of_its_own_is_resized_and_saved_by_itself(tmp_path: Path) -> None:
    model = new_model("ForMaskedLM", tie_word_embeddings=False)
    assert model.generator_lm_head.weight is not model.get_input_embeddings().weight
    model.resize_token_embeddings(33, mean_resizing=False)
    assert model.generator_lm_head.weight.shape == model.get_input_embeddings().weight.shape == (33, 12)
    model.save_pretrained(tmp_path)
    assert equal(loaded("ForMaskedLM", tmp_path), model)


@every_head
def test_embeddings_can_be_taken_and_put(head: str) -> None:
    model, other = new_model(head), torch.nn.Embedding(30, 12)
    model.set_input_embeddings(other)
    assert model.get_input_embeddings() is model.base_model.embeddings.word_embeddings is other
    if head == "ForMaskedLM":
        model.tie_weights()
        assert model.get_output_embeddings().weight is other.weight
    else:
        assert model.get_output_embeddings() is None


@every_head
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_loads_and_computes_in_half_precision(head: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = new_model(head)
    model.save_pretrained(tmp_path)
    half = loaded(head, tmp_path, dtype=dtype)
    assert {weight.dtype for weight in half.parameters()} == {dtype} and half.dtype == dtype
    output = half(**inputs(head))[0]
    assert output.dtype == dtype
    expected = model(**inputs(head))[0]
    assert (output.float() - expected).abs().max() < 0.05 * expected.abs().max() + 0.05
    half.save_pretrained(tmp_path / "half")
    assert loaded(head, tmp_path / "half", dtype="auto").dtype == dtype


@every_head
def test_a_device_map_and_a_device_context_place_the_weights(head: str, tmp_path: Path) -> None:
    model = new_model(head)
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    expected = model(**inputs(head))[0]
    with torch.device("cpu"):
        again = loaded(head, tmp_path)
        assert equal(again, model)
        assert_close(again(**inputs(head))[0], expected)
    prefix = "" if head == "Model" else "electra."
    parts = [f"{prefix}{name}" for name in ("embeddings", "embeddings_project", "encoder")]
    others = [name for name, _ in model.named_children() if name not in ("electra", *parts)]
    spread = dict.fromkeys((*parts, *others), "cpu") | {f"{prefix}encoder": "disk"}
    for placed in ("cpu", "auto", {"": "cpu"}, spread):
        offload = {"offload_folder": tmp_path / "offloaded"} if placed is spread else {}
        again = loaded(head, tmp_path, device_map=placed, **offload)
        assert offload or equal(again, model)
        assert_close(again(**inputs(head))[0], expected)
    assert all(weight.is_meta for weight in again.base_model.encoder.parameters())


@every_head
def test_the_configuration_goes_round_and_is_one_for_the_whole_model(head: str, tmp_path: Path) -> None:
    model = new_model(head, id2label={0: "no", 1: "maybe", 2: "yes"}, classifier_dropout=0.2)
    assert model.config is model.base_model.config
    model.save_pretrained(tmp_path)
    config = code.ElectraSamplerConfig.from_pretrained(tmp_path)
    assert config.num_labels == 3 and config.id2label[1] == "maybe"
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "electra_sampler" and written["architectures"] == [type(model).__name__]
    assert {name: written[name] for name in TINY} == TINY
    assert code.ElectraSamplerConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert code.ElectraSamplerConfig().num_hidden_layers == 12
