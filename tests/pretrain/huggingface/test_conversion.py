"""Claims about starting from a BERT or an MPNet, against Hugging Face itself."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertModel, MPNetConfig, MPNetForMaskedLM, MPNetModel

from electra_sampler.foundation.config import ConfigError
from pretrain.data.batches import Batch
from pretrain.huggingface.forms import WORDS
from pretrain.huggingface.stored import read_stored
from pretrain.method.electra import Electra
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import make_plan
from pretrain.runs.models import initial_model

SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}


def start(shards: Path, folder: Path, **changes: object) -> Electra:
    values = {"preset": "tiny", "data": (shards,), "output": shards / "none", "init_from": (str(folder),), **changes}
    plan = make_plan(RunOptions.from_values(values))
    model = initial_model(plan.description, plan.donors)
    assert isinstance(model, Electra)
    return model


def save(kind: type, config: object, folder: Path) -> torch.nn.Module:
    torch.manual_seed(0)
    model = kind(config).eval()
    for parameter in model.parameters():  # biases and LayerNorms away from 0 and 1
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", [BertModel, BertForMaskedLM])
def test_a_bert_starts_the_discriminators_encoder_with_equal_states(
    kind: type, shards_folder: Path, batch: Batch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bert = save(kind, BertConfig(**SIZES), tmp_path / "bert")
    model = start(shards_folder, tmp_path / "bert", objective="electra").eval()
    assert "generator, generator_predictions, generator_lm_head, discriminator_predictions" in capsys.readouterr().out
    segments_BL = torch.arange(batch.input_ids_BL.shape[1]).expand_as(batch.input_ids_BL) % 2
    mine = model.discriminator(batch.input_ids_BL, batch.attention_mask_BL, segments_BL)
    encoder = bert.bert if kind is BertForMaskedLM else bert
    theirs = encoder(batch.input_ids_BL, batch.attention_mask_BL.long(), segments_BL).last_hidden_state
    assert torch.allclose(mine[batch.attention_mask_BL], theirs[batch.attention_mask_BL], atol=1e-5)
    assert model.generator.embeddings is model.discriminator.embeddings


def test_weights_under_the_original_berts_names_are_the_same(tmp_path: Path) -> None:
    save(BertModel, BertConfig(**SIZES), tmp_path)
    before, path = read_stored(tmp_path).weights(), tmp_path / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): weight
        for name, weight in load_file(path).items()
    }
    save_file({f"bert.{name}": weight for name, weight in old.items()}, path)
    again = read_stored(tmp_path).weights()
    assert before.keys() == again.keys() and all(torch.equal(before[name], again[name]) for name in before)


@pytest.mark.parametrize("kind", [MPNetModel, MPNetForMaskedLM])
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1e-2])  # microsoft/mpnet-base has 1e-5
def test_an_mpnet_starts_the_discriminators_encoder_with_equal_states(
    eps: float, kind: type, shards_folder: Path, batch: Batch, tmp_path: Path
) -> None:
    mpnet = save(kind, MPNetConfig(**SIZES, max_position_embeddings=66, layer_norm_eps=eps), tmp_path / "mpnet")
    model = start(shards_folder, tmp_path / "mpnet").eval()
    config = model.discriminator.config
    assert {module.eps for module in model.modules() if isinstance(module, torch.nn.LayerNorm)} == {eps}
    assert config.relative_position and config.max_position_embeddings == 64
    mine = model.discriminator(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
    encoder = mpnet.mpnet if kind is MPNetForMaskedLM else mpnet
    theirs = encoder(batch.input_ids_BL, batch.attention_mask_BL.long()).last_hidden_state
    assert torch.allclose(mine[batch.attention_mask_BL], theirs[batch.attention_mask_BL], atol=1e-5)
    other_segment = model.discriminator(batch.input_ids_BL, batch.attention_mask_BL, 1 - batch.token_type_ids_BL)
    assert torch.equal(mine, other_segment)


def test_another_layer_norm_than_the_models_is_refused_by_field(shards_folder: Path, tmp_path: Path) -> None:
    save(MPNetModel, MPNetConfig(**SIZES, layer_norm_eps=1e-5), tmp_path / "mpnet")
    with pytest.raises(ConfigError, match="has layer_norm_eps 1e-05, expected 1e-12"):
        start(shards_folder, tmp_path / "mpnet", set=("model.layer_norm_eps=1e-12",))


def test_another_class_than_its_name_says_lacks_weights(shards_folder: Path, tmp_path: Path) -> None:
    save(BertModel, BertConfig(**SIZES), tmp_path / "bert")
    path = tmp_path / "bert" / "model.safetensors"
    weights = load_file(path)
    save_file({name: weight for name, weight in weights.items() if "layer.1." not in name}, path)
    assert WORDS in read_stored(tmp_path / "bert").weights()
    with pytest.raises(ConfigError, match=r"lacks 16 weights of its configuration, such as electra\.encoder\.layer\.1"):
        start(shards_folder, tmp_path / "bert")
