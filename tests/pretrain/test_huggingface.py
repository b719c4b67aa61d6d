"""Claims about Hugging Face folders, against Hugging Face itself."""

import json
from pathlib import Path

import pytest
import torch
from transformers import ElectraConfig, ElectraForPreTraining

from data_prep.config import ConfigError
from pretrain.huggingface import load_encoder, save_folder

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


def test_a_stock_electra_loads_with_its_weights_to_the_bit(stock_folder: Path) -> None:
    theirs = ElectraForPreTraining.from_pretrained(stock_folder).electra.state_dict()
    ours = load_encoder(stock_folder).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_random_weights_keep_the_shape_and_changes_reach_the_configuration(stock_folder: Path) -> None:
    fresh = load_encoder(stock_folder, random_weights=True, hidden_dropout_prob=0.3)
    trained = load_encoder(stock_folder)
    assert fresh.config.hidden_dropout_prob == 0.3
    assert [p.shape for p in fresh.parameters()] == [p.shape for p in trained.parameters()]
    assert not torch.equal(next(fresh.parameters()), next(trained.parameters()))


def test_relative_position_survives_the_round_trip(tmp_path: Path, stock_folder: Path) -> None:
    encoder = load_encoder(stock_folder, random_weights=True)
    config = encoder.config.__class__(**{**encoder.config.__dict__, "relative_position": True})
    relative = encoder.__class__(config)
    weights = {f"electra.{name}": weight for name, weight in relative.state_dict().items()}
    save_folder(tmp_path / "ours", "ElectraForPreTraining", config, weights, pad_token_id=0)
    loaded = load_encoder(tmp_path / "ours")
    assert loaded.config == config
    table = relative.encoder.relative_attention_bias.weight
    assert torch.equal(loaded.encoder.relative_attention_bias.weight, table)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"model_type": "bert"}, "model_type 'bert'; expected an ELECTRA model"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'; expected 'gelu'"),
        ({"hidden_size": 48}, "do not fit its config.json"),
        ({"num_hidden_layers": 3}, "lacks 16 weights of its configuration, such as encoder.layer.2"),
    ],
)
def test_a_folder_that_is_no_fitting_electra_is_one_clear_error(
    damage: dict[str, object], message: str, stock_folder: Path
) -> None:
    path = stock_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(ConfigError, match=message):
        load_encoder(stock_folder)


def test_a_configuration_that_is_no_object_is_one_clear_error(stock_folder: Path) -> None:
    (stock_folder / "config.json").write_text("[1, 2]")
    with pytest.raises(ConfigError, match="holds list, expected an object"):
        load_encoder(stock_folder)


def test_pickled_weights_are_not_read(stock_folder: Path) -> None:
    (stock_folder / "model.safetensors").rename(stock_folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"no model\.safetensors"):
        load_encoder(stock_folder)


def test_damaged_weights_are_one_clear_error(stock_folder: Path) -> None:
    path = stock_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="cannot read"):
        load_encoder(stock_folder)


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_encoder(tmp_path / "nothing")
