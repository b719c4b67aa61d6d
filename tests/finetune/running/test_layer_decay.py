"""finetune/running/layer_decay.py: exact factors of layer-wise decay, each parameter exactly once."""

import pytest

from finetune.config import FinetuneConfig
from finetune.glue.heads import SequenceClassifier
from finetune.running.layer_decay import layer_scale
from finetune.running.train import groups
from pretrain.model.encoder import ElectraEncoder, EncoderConfig

SETTINGS = FinetuneConfig(learning_rate=1e-3, epochs=1, batch_size=4, weight_decay=0.01, max_length=16)


def twelve_layers() -> SequenceClassifier:
    config = EncoderConfig(
        vocab_size=20,
        embedding_size=4,
        hidden_size=8,
        num_hidden_layers=12,
        num_attention_heads=2,
        intermediate_size=8,
    )
    return SequenceClassifier(ElectraEncoder(config), 2)


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("head.weight", 1.0),
        ("electra.encoder.layer.11.output.dense.weight", 0.8),
        ("electra.encoder.layer.1.attention.self.query.bias", 0.8**11),
        ("electra.encoder.layer.0.attention.self.query.bias", 0.0687),
        ("electra.embeddings.word_embeddings.weight", 0.0550),
        ("electra.embeddings_project.weight", 0.0550),
        ("electra.encoder.relative_attention_bias.weight", 0.0550),
    ],
)
def test_a_layers_factor_is_decay_to_the_power_of_its_depth_below_the_head(name: str, factor: float) -> None:
    assert name in dict(twelve_layers().named_parameters())
    assert layer_scale(name, 12, 0.8) == pytest.approx(factor, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("head.weight", 1.0),
        ("electra.encoder.layer.11.output.dense.weight", 0.64),
        ("electra.encoder.layer.0.attention.self.query.bias", 0.0550),
        ("electra.embeddings.word_embeddings.weight", 0.0440),
    ],
)
def test_the_legacy_form_is_google_researchs(name: str, factor: float) -> None:
    assert layer_scale(name, 12, 0.8, legacy=True) == pytest.approx(factor, abs=5e-5)
    made = groups(twelve_layers(), 12, SETTINGS.model_copy(update={"legacy_layer_decay": True}))
    assert any(group["lr_scale"] == pytest.approx(factor, abs=5e-5) for group in made)


def test_each_parameter_is_in_the_group_of_its_layer() -> None:
    model = twelve_layers()
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    made = groups(model, 12, SETTINGS)
    assert sorted(id(p) for group in made for p in group["params"]) == sorted(named)
    for group in made:
        for parameter in group["params"]:
            assert group["lr_scale"] == layer_scale(named[id(parameter)], 12, 0.8)
    assert len({group["lr_scale"] for group in made}) == 14


def test_without_decay_every_layer_has_the_same_rate() -> None:
    made = groups(twelve_layers(), 12, SETTINGS.model_copy(update={"layer_decay": 1.0}))
    assert {group["lr_scale"] for group in made} == {1.0}
