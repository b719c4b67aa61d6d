"""Claims about the model code of an export with relative position: it computes what training's encoder and heads do,
and what Hugging Face's ELECTRA does where the table of relative positions is zero; a folder carries it as one file.
"""

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import ElectraConfig

from pretrain.huggingface import modeling_electra_sampler as exported
from pretrain.huggingface.export import export
from pretrain.huggingface.forms import MODEL_FILE
from pretrain.huggingface.stored import read_stored
from pretrain.method.electra import Electra
from pretrain.model.encoder import ElectraEncoder, relative_bucket
from pretrain.model.sizes import EncoderConfig
from tests.exported.models import HEADS, TINY, inputs, labels
from tests.pretrain.huggingface.conftest import assert_bitwise


@pytest.mark.usefixtures("plain_ops")
@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"embedding_size": 16},
        {"type_vocab_size": 3},
        {"layer_norm_eps": 1e-3},
        {"num_attention_heads": 1, "num_hidden_layers": 1},
        {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 16},
        {"relative_attention_num_buckets": 64, "relative_attention_max_distance": 33},
        {"relative_bias_init": "local"},
    ],
)
def test_outputs_are_the_encoders_to_the_bit_whatever_the_configuration(switches: dict[str, Any]) -> None:
    torch.manual_seed(0)
    values = TINY | switches
    theirs = ElectraEncoder(EncoderConfig(**values)).eval()
    theirs.encoder.packs = False  # padding is computed there, too
    torch.nn.init.normal_(theirs.encoder.relative_attention_bias.weight)
    ours = exported.ElectraSamplerModel(exported.ElectraSamplerConfig(**values)).eval()
    ours.load_state_dict(theirs.state_dict())
    given = inputs("Model")
    with torch.no_grad():
        assert torch.equal(ours(**given).last_hidden_state, theirs(*given.values()))
        unmasked = theirs(given["input_ids"], torch.ones(3, 11), torch.zeros(3, 11, dtype=torch.long))
        torch.testing.assert_close(ours(given["input_ids"]).last_hidden_state, unmasked, rtol=0, atol=1e-6)


def test_every_distance_has_the_bucket_that_it_has_in_training() -> None:
    distance = torch.arange(-200, 201)
    table = torch.arange(128.0)[:, None]
    for buckets, reach in [(32, 128), (8, 16), (64, 33), (128, 190), (16, 100)]:
        config = exported.ElectraSamplerConfig(
            **TINY
            | {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": reach}
            | {"num_attention_heads": 1, "hidden_size": 1}
        )
        bias = exported.RelativePositionBias(config)
        bias.weight.data = table[:buckets].clone()
        ours = bias(torch.arange(201)[None])[0, 0]
        assert torch.equal(torch.cat([ours[200, :200], ours[0]]), relative_bucket(distance, buckets, reach).float())


def test_permuted_tokens_that_keep_their_positions_have_the_states_they_had() -> None:
    torch.manual_seed(0)
    model = exported.ElectraSamplerModel(exported.ElectraSamplerConfig(**TINY)).eval()
    ids_BL = inputs("Model")["input_ids"]
    order = torch.randperm(11)
    permuted = model(ids_BL[:, order], position_ids=order.expand(3, 11)).last_hidden_state
    torch.testing.assert_close(permuted, model(ids_BL).last_hidden_state[:, order])


def pair(head: str, **switches: Any) -> tuple[Any, Any]:
    """Our class with a zero table, and Hugging Face's ELECTRA of the same weights."""
    torch.manual_seed(0)
    theirs = getattr(transformers, f"Electra{head}")(ElectraConfig(**TINY, **switches)).eval()
    for weight in theirs.parameters():  # a bias of zero would hide that it is left out
        torch.nn.init.normal_(weight, std=0.3)
    ours = getattr(exported, f"ElectraSampler{head}")(exported.ElectraSamplerConfig(**TINY, **switches)).eval()
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert [name.rpartition("encoder.")[2] for name in missing] == ["relative_attention_bias.weight"]
    assert not unexpected
    ours.base_model.encoder.relative_attention_bias.weight.data.zero_()
    return ours, theirs


@pytest.mark.parametrize(("head", "attention"), [("Model", "eager"), *((head, "sdpa") for head in HEADS)])
def test_with_a_zero_table_a_model_is_hugging_faces_electra(head: str, attention: str) -> None:
    ours, theirs = pair(head, attn_implementation=attention)
    asked = {"output_hidden_states": True, "output_attentions": attention == "eager"}
    one, other = (model(**inputs(head), **labels(head), **asked) for model in (ours, theirs))
    assert list(one) == [name for name in other if name != "cross_attentions"]
    for name, values in one.items():
        torch.testing.assert_close(values, other[name])


def test_masks_of_every_form_that_electra_takes_do_what_they_do_there() -> None:
    ours, theirs = pair("Model")
    ids_BL, mask_BL = inputs("Model")["input_ids"], inputs("Model")["attention_mask"]
    visible_BLL = mask_BL[:, None, :].bool() & (torch.rand(3, 11, 11) < 0.7) | torch.eye(11, dtype=torch.bool)
    added_B1LL = torch.zeros(3, 1, 11, 11).masked_fill(~visible_BLL[:, None], -1e9)
    for mask in (mask_BL, mask_BL.bool(), mask_BL.float(), visible_BLL[:, None], added_B1LL):
        expected = theirs(ids_BL, mask).last_hidden_state
        torch.testing.assert_close(ours(ids_BL, mask).last_hidden_state, expected)
    expected = theirs(ids_BL, added_B1LL).last_hidden_state
    torch.testing.assert_close(ours(ids_BL, visible_BLL).last_hidden_state, expected)


def test_a_sequence_beyond_the_position_table_is_refused_in_words() -> None:
    model = exported.ElectraSamplerModel(exported.ElectraSamplerConfig(**TINY))
    with pytest.raises(ValueError, match=r"got a sequence of 41 tokens, expected at most 40 .*truncation=True"):
        model(torch.zeros(1, 41, dtype=torch.long))
    with pytest.raises(ValueError, match="expected one of input_ids and inputs_embeds"):
        model()


def test_a_folder_carries_the_code_as_it_is_and_it_imports_torch_and_transformers_only(
    make_electra: Callable[..., Electra], tokenizer: Path, tmp_path: Path
) -> None:
    export(make_electra(), tokenizer, "# card\n", tmp_path / "out", 0.15)
    source = Path(exported.__file__).read_text()
    body = ast.parse(source).body
    imported = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    imported += [str(node.module) for node in body if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in imported} - sys.stdlib_module_names == {"torch", "transformers"}
    assert "torch.ops" not in source
    for folder in (tmp_path / "out", tmp_path / "out" / "generator"):
        assert [path.name for path in folder.glob("*.py")] == [MODEL_FILE]
        assert (folder / MODEL_FILE).read_text() == source
        for auto, name in json.loads((folder / "config.json").read_text())["auto_map"].items():
            module, model = name.split(".")
            assert module == Path(MODEL_FILE).stem and hasattr(transformers, auto) and hasattr(exported, model)


def test_weights_go_both_ways_to_the_bit(make_electra: Callable[..., Electra], tokenizer: Path, tmp_path: Path) -> None:
    """Also in the layout of earlier exports, whose generator came without the output matrix."""
    model = make_electra().eval()
    export(model, tokenizer, "# card\n", tmp_path / "out", 0.15)
    generator, loading = exported.ElectraSamplerForMaskedLM.from_pretrained(
        tmp_path / "out" / "generator", output_loading_info=True
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert generator.generator_lm_head.weight is generator.electra.embeddings.word_embeddings.weight
    for name, weight in model.exported("generator").state_dict().items():
        assert torch.equal(generator.state_dict()[name], weight)
    generator.save_pretrained(tmp_path / "again")
    assert_bitwise(read_stored(tmp_path / "again").encoder().state_dict(), model.generator.state_dict())
