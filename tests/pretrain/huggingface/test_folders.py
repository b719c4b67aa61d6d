"""Claims about reading Hugging Face folders, against Hugging Face itself."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoTokenizer, ElectraConfig, ElectraForPreTraining

from electra_sampler.foundation.config import ConfigError
from pretrain.huggingface.folders import load_tokenizer, read_weights, tokenizer_settings
from pretrain.huggingface.stored import read_stored, write
from tests.pretrain.huggingface.conftest import assert_bitwise, change_config, change_weights

SIZES = {
    "vocab_size": 50,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


@pytest.fixture
def stock_folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    ElectraForPreTraining(ElectraConfig(**SIZES)).save_pretrained(tmp_path / "stock")
    return tmp_path / "stock"


def test_a_stock_electra_loads_with_bitwise_equal_weights(stock_folder: Path) -> None:
    theirs = ElectraForPreTraining.from_pretrained(stock_folder).electra.state_dict()
    ours = read_stored(stock_folder).encoder().state_dict()
    assert_bitwise(ours, theirs)


def test_random_weights_keep_the_shape_and_changes_reach_the_configuration(stock_folder: Path) -> None:
    fresh = read_stored(stock_folder).encoder(random_weights=True, hidden_dropout_prob=0.3)
    trained = read_stored(stock_folder).encoder()
    assert fresh.config.hidden_dropout_prob == 0.3
    assert [p.shape for p in fresh.parameters()] == [p.shape for p in trained.parameters()]
    assert not torch.equal(next(fresh.parameters()), next(trained.parameters()))


def test_relative_positions_survive_the_round_trip(tmp_path: Path, stock_folder: Path) -> None:
    encoder = read_stored(stock_folder).encoder(random_weights=True)
    config = encoder.config.__class__(**{**encoder.config.__dict__, "relative_position": True})
    relative = encoder.__class__(config)
    weights = {f"electra.{name}": weight for name, weight in relative.state_dict().items()}
    write(tmp_path / "ours", "ElectraForPreTraining", config, weights, {"pad": 0}, {})
    loaded = read_stored(tmp_path / "ours").encoder()
    assert loaded.config == config
    name = "encoder.relative_attention_bias.weight"
    assert torch.equal(loaded.get_parameter(name), relative.get_parameter(name))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"model_type": "roberta"}, "model_type 'roberta'; expected one of electra, electra_sampler, modernbert"),
        ({"hidden_act": "relu"}, "hidden_act: got 'relu', expected: input should be 'gelu'"),
        ({"hidden_size": 48}, "do not fit its config.json"),
        ({"num_hidden_layers": 3}, "lacks 16 weights of its configuration, such as electra.encoder.layer.2"),
        (
            {"num_hidden_layers": 1},
            "16 weights that the model in its config.json lacks, such as electra.encoder.layer.1",
        ),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type: got 'relative_key', expected: .*'absolute'",
        ),
        ({"is_decoder": True}, "is_decoder: got True, expected: .*False"),
        ({"add_cross_attention": True}, "add_cross_attention: got True, expected: .*False"),
        ({"quantization_config": {"load_in_8bit": True}}, "quantization_config: .*, expected: .*None"),
        ({"hidden_size": "32"}, "hidden_size: got '32', expected: .* valid integer; correct it, or name another"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: got 0, expected: .* greater than 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: got 1000000000, expected: .* at most|less than"),
        ({"max_position_embeddings": 10**30}, r"max_position_embeddings: got 1000\d+, expected: .* less than"),
        ({"vocab_size": 50.0}, "vocab_size: got 50.0, expected: .* valid integer"),
        ({"vocab_size": None}, "vocab_size: got None, expected: .* valid integer"),
        ({"layer_norm_eps": "tiny"}, "layer_norm_eps: got 'tiny', expected: .* valid number"),
        ({"layer_norm_eps": -1}, "layer_norm_eps: got -1, expected: .* greater than or equal to 0"),
        ({"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob: got nan, expected: .* finite"),
        ({"architectures": 3}, "architectures: got 3, expected: .* valid list"),
        ({"type_vocab_size": 1}, "type_vocab_size: got 1, expected: .* greater than 1; correct it, or name another"),
    ],
)
def test_a_folder_without_a_supported_electra_is_one_clear_error(
    damage: dict[str, object], message: str, stock_folder: Path
) -> None:
    change_config(stock_folder, damage)
    with pytest.raises(ConfigError, match=message):
        read_stored(stock_folder).encoder()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1, 2]", "holds list, expected an object"),
        (b'{"a":' * 100_000, "recursion limit exceeded"),
        (b'{"model_type": "\\ud800"}', "hex escape"),
        (b"\xff", "expected value"),
    ],
)
def test_a_configuration_that_is_no_json_object_is_one_clear_error(
    content: bytes, message: str, stock_folder: Path
) -> None:
    (stock_folder / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"model: .*config\.json.*{message}"):
        read_stored(stock_folder).encoder()


def test_pickled_weights_are_read_only_without_safetensors_and_only_as_tensors(stock_folder: Path) -> None:
    weights, path = read_weights(stock_folder), stock_folder / "pytorch_model.bin"
    torch.save({name: weight + 1 for name, weight in weights.items()}, path)
    assert_bitwise(read_weights(stock_folder), weights)
    torch.save(weights, path)
    (stock_folder / "model.safetensors").unlink()
    assert_bitwise(read_weights(stock_folder), weights)


class Stranger:
    """Anything but a tensor."""


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"no pickle", {"weight": Stranger()}, {"weight": 1.0}, [1, 2], {3: torch.zeros(1)}),
        *({"weight": torch.zeros(1).to_sparse()}, {"weight": torch.zeros(1, device="meta")}),
    ],
)
def test_a_pickle_of_anything_else_is_one_clear_error(content: object, stock_folder: Path) -> None:
    path = stock_folder / "pytorch_model.bin"
    (stock_folder / "model.safetensors").unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ConfigError, match=r"model: cannot read .*pytorch_model\.bin \(\S"):
        read_stored(stock_folder).encoder()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: os.truncate(folder / "model.safetensors", 1000), "cannot read"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no model\.safetensors"),
        (shutil.rmtree, "does not exist"),
    ],
    ids=["cut weights", "no weights", "no folder"],
)
def test_damaged_and_missing_files_are_one_clear_error(
    damage: Callable[[Path], object], message: str, stock_folder: Path
) -> None:
    damage(stock_folder)
    with pytest.raises(ConfigError, match=message):
        read_stored(stock_folder).encoder()


def test_a_distance_table_is_refused_even_if_the_configuration_does_not_mention_it(stock_folder: Path) -> None:
    """Such as `position_embedding_type: relative_key` adds to each layer; without it the outputs would be wrong."""
    table = torch.zeros(1023, 8)
    change_weights(stock_folder, {"electra.encoder.layer.0.attention.self.distance_embedding.weight": table})
    with pytest.raises(ConfigError, match=r"holds 1 weight that the model .* lacks, such as .*distance_embedding"):
        read_stored(stock_folder).encoder()


def test_position_ids_saved_by_old_versions_are_ignored(stock_folder: Path) -> None:
    before = read_stored(stock_folder).encoder().state_dict()
    change_weights(stock_folder, {"electra.embeddings.position_ids": torch.arange(512)[None]})
    after = read_stored(stock_folder).encoder().state_dict()
    assert_bitwise(after, before)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64])
def test_weights_that_fp32_cannot_represent_exactly_are_refused(dtype: torch.dtype, stock_folder: Path) -> None:
    change_weights(stock_folder, {"electra.embeddings.LayerNorm.weight": torch.ones(16, dtype=dtype)})
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(ConfigError, match=f"LayerNorm.weight as {kind}; save it as float32, bfloat16 or float16"):
        read_stored(stock_folder).encoder()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_refused_by_name(value: float, dtype: torch.dtype, stock_folder: Path) -> None:
    weight = torch.ones(16, dtype=dtype)
    weight[7] = value
    change_weights(stock_folder, {"electra.embeddings.LayerNorm.weight": weight})
    with pytest.raises(ConfigError, match=r"holds NaN or infinity in electra\.embeddings\.LayerNorm\.weight, expected"):
        read_stored(stock_folder).encoder()


def test_weights_in_half_precision_are_loaded_exactly(stock_folder: Path) -> None:
    weight = torch.rand(16).bfloat16()
    change_weights(stock_folder, {"electra.embeddings.LayerNorm.weight": weight})
    found = read_stored(stock_folder).encoder().get_parameter("embeddings.LayerNorm.weight")
    assert torch.equal(found, weight.float())


def test_weights_in_several_files_are_refused_with_a_remedy(stock_folder: Path) -> None:
    model = ElectraForPreTraining.from_pretrained(stock_folder)
    (stock_folder / "model.safetensors").unlink()
    model.save_pretrained(stock_folder, max_shard_size="10KB")
    with pytest.raises(ConfigError, match=r"weights in several files; save it as one, with a max_shard_size"):
        read_stored(stock_folder).encoder()


@pytest.mark.parametrize("kind", ["Bert", "MPNet"])
def test_pairs_of_texts_get_the_ids_of_transformers(kind: str, tokenizer: Path, tmp_path: Path) -> None:
    """MPNet puts two tokens between them."""
    own = ["<s>", "<pad>", "</s>", "<unk>", *(tokenizer / "vocab.txt").read_text().splitlines(), "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(own) + "\n")
    getattr(transformers, f"{kind}TokenizerFast")(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    pairs = (["yes no", "yes"], ["no", "no yes no"])
    theirs = AutoTokenizer.from_pretrained(tmp_path)(*pairs)["input_ids"]
    assert load_tokenizer(tmp_path)(*pairs)["input_ids"] == theirs
    assert len(theirs[0]) == (7 if kind == "MPNet" else 6)


@pytest.mark.parametrize("tokens", ["yes\nno", "Yes\nno"])
def test_a_vocab_txt_alone_gives_its_ids_in_transformers_with_the_settings_written_for_it(
    tokens: str, tmp_path: Path
) -> None:
    (tmp_path / "vocab.txt").write_text(f"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n{tokens}\n")
    ours = load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_settings(tmp_path, ours)))
    assert AutoTokenizer.from_pretrained(tmp_path)("Yes no")["input_ids"] == ours("Yes no")["input_ids"] == [2, 5, 6, 3]
