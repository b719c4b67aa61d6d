"""Claims about the learning rate schedule and about weight decay."""

import pytest
import torch
from torch import nn

from electra_sampler.foundation.config import ConfigError
from pretrain.engine.optim import (
    OptimConfig,
    learning_rate,
    parameter_groups,
    without_bias_correction,
)
from pretrain.model.encoder import ElectraEncoder, Embeddings
from pretrain.model.sizes import EncoderConfig

SIZES = EncoderConfig(
    vocab_size=30,
    embedding_size=4,
    hidden_size=6,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=8,
)


class TwoEncoders(nn.Module):
    """Generator and discriminator with shared embeddings."""

    def __init__(self) -> None:
        super().__init__()
        embeddings = Embeddings(SIZES)
        self.generator = ElectraEncoder(SIZES, embeddings)
        self.discriminator = ElectraEncoder(SIZES, embeddings)


def rates(total_steps: int = 100, warmup_steps: int = 10) -> list[float]:
    return [
        learning_rate(step, base=2.0, warmup_steps=warmup_steps, total_steps=total_steps)
        for step in range(total_steps + 1)
    ]


def test_the_rate_rises_linearly_to_its_base_and_falls_linearly_to_zero() -> None:
    values = rates()
    assert values[:10] == pytest.approx([2.0 * (step + 1) / 10 for step in range(10)])
    assert values[10:] == pytest.approx([2.0 * (100 - step) / 90 for step in range(10, 101)])


def test_without_warmup_the_first_rate_is_the_base() -> None:
    assert rates(warmup_steps=0)[0] == 2.0


def test_adam_without_bias_correction_is_googles_update_by_hand_in_float64() -> None:
    """google-research/electra `optimization.py`: w <- w - lr (m / (sqrt(v) + eps) + wd w), m and v uncorrected."""
    torch.manual_seed(0)
    betas, eps, decay, rate = (0.9, 0.999), 1e-3, 0.1, 0.05  # an eps large enough to matter
    by_hand = torch.randn(5, dtype=torch.float64)
    weight = nn.Parameter(by_hand.clone())
    optimizer = torch.optim.AdamW([weight], betas=betas)
    m, v = torch.zeros_like(by_hand), torch.zeros_like(by_hand)
    for updates in range(30):
        gradient = torch.randn(5, dtype=torch.float64)
        m, v = betas[0] * m + (1 - betas[0]) * gradient, betas[1] * v + (1 - betas[1]) * gradient**2
        by_hand = by_hand - rate * (m / (v.sqrt() + eps) + decay * by_hand)
        scale = without_bias_correction(updates, betas)
        optimizer.param_groups[0] |= {
            "lr": rate * scale.learning_rate,
            "eps": eps * scale.eps,
            "weight_decay": decay * scale.weight_decay,
        }
        weight.grad = gradient
        optimizer.step()
        assert weight.tolist() == pytest.approx(by_hand.tolist(), rel=1e-12)


def test_every_trainable_parameter_is_in_exactly_one_group() -> None:
    model = TwoEncoders()
    held = [id(parameter) for group in parameter_groups(model, 0.01) for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters())


def test_layer_norms_biases_and_relative_bias_tables_do_not_decay() -> None:
    model = TwoEncoders()
    decay_of = {id(p): group["weight_decay"] for group in parameter_groups(model, 0.01) for p in group["params"]}
    for name, parameter in model.named_parameters():
        spared = name.endswith("bias") or "LayerNorm" in name or "relative_attention_bias" in name
        assert decay_of[id(parameter)] == (0.0 if spared else 0.01), name


def test_groups_have_the_learning_rate_scale_of_each_name() -> None:
    groups = parameter_groups(TwoEncoders(), 0.01, lr_scale=lambda name: 0.5 if "embeddings." in name else 1.0)
    assert sorted((group["weight_decay"], group["lr_scale"]) for group in groups) == [
        (0.0, 0.5), (0.0, 1.0), (0.01, 0.5), (0.01, 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize("mistake", [{"warmup_steps": 100}, {"betas": (0.9, 1.0)}, {"lr": 0}, {"warmpu_steps": 1}])
def test_impossible_optimizer_settings_are_refused(mistake: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(mistake))):
        OptimConfig.from_values({"lr": 1e-3, "steps": 100, "warmup_steps": 10} | mistake)


def wsd(**settings: object) -> list[float]:
    config = OptimConfig(lr=2.0, steps=100, warmup_steps=10, schedule="wsd", **settings)  # type: ignore[arg-type]
    return [config.rate(updates) for updates in range(100)]


def test_a_stable_run_stays_at_its_rate_after_the_warmup() -> None:
    assert wsd() == pytest.approx([2.0 * (step + 1) / 10 for step in range(10)] + [2.0] * 90)


@pytest.mark.parametrize("shape", ["linear", "sqrt"])
def test_a_decay_falls_from_the_rate_to_its_final_share(shape: str) -> None:
    values = wsd(decay_steps=40, decay_shape=shape, final_scale=0.1)
    shares = [done / 40 for done in range(40)]
    left = [1 - (share if shape == "linear" else share**0.5) for share in shares]
    assert values[10:60] == [2.0] * 50
    assert values[60:] == pytest.approx([2.0 * (0.1 + 0.9 * part) for part in left])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"decay_steps": 5}, "decay_steps: got 5 with schedule linear"),
        ({"decay_shape": "linear"}, "decay_shape: got linear with schedule linear"),
        ({"final_scale": 0.1}, "final_scale: got 0.1 with schedule linear"),
        ({"schedule": "wsd", "decay_steps": 91}, "decay_steps: got 91, expected at most 90"),
    ],
)
def test_a_decay_without_its_schedule_or_longer_than_the_run_is_refused(settings: dict, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        OptimConfig.from_values({"lr": 1.0, "steps": 100, "warmup_steps": 10, **settings})
