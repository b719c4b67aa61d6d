"""Claims about the learning rate schedule and about weight decay."""

from typing import Any

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
from tests.pretrain.conftest import new_model


@pytest.mark.parametrize("warmup", [10, 0])
def test_the_rate_rises_linearly_to_its_base_and_falls_linearly_to_zero(warmup: int) -> None:
    rates = [learning_rate(step, base=2.0, warmup_steps=warmup, total_steps=100) for step in range(101)]
    rising = [2.0 * (step + 1) / warmup for step in range(warmup)]
    assert rates == pytest.approx([*rising, *(2.0 * (100 - step) / (100 - warmup) for step in range(warmup, 101))])


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


def test_every_parameter_is_in_one_group_where_layer_norms_biases_and_relative_bias_tables_do_not_decay() -> None:
    model = new_model()
    held = [(id(p), group["weight_decay"]) for group in parameter_groups(model, 0.01) for p in group["params"]]
    assert len(held) == len([*model.parameters()])
    for name, parameter in model.named_parameters():
        spared = name.endswith("bias") or "LayerNorm" in name or "relative_attention_bias" in name
        assert dict(held)[id(parameter)] == (0.0 if spared else 0.01), name


def test_groups_have_the_learning_rate_scale_of_each_name() -> None:
    groups = parameter_groups(new_model(), 0.01, lr_scale=lambda name: 0.5 if "embeddings." in name else 1.0)
    assert sorted((group["weight_decay"], group["lr_scale"]) for group in groups) == [
        (0.0, 0.5), (0.0, 1.0), (0.01, 0.5), (0.01, 1.0),
    ]  # fmt: skip


SHARES = [done / 40 for done in range(40)]


@pytest.mark.parametrize(
    ("decay", "left"),
    [
        ({}, [1.0] * 40),
        ({"decay_steps": 40, "decay_shape": "linear"}, [1 - share for share in SHARES]),
        ({"decay_steps": 40, "decay_shape": "sqrt"}, [1 - share**0.5 for share in SHARES]),
    ],
    ids=["stable", "linear", "sqrt"],
)
def test_a_stable_run_stays_at_its_rate_until_a_decay_falls_to_its_final_share(
    decay: dict[str, Any], left: list[float]
) -> None:
    config = OptimConfig(lr=2.0, steps=100, warmup_steps=10, schedule="wsd", final_scale=0.1, **decay)
    rates = [config.rate(updates) for updates in range(100)]
    rising = [2.0 * (step + 1) / 10 for step in range(10)]
    assert rates == pytest.approx([*rising, *[2.0] * 50, *(2.0 * (0.1 + 0.9 * part) for part in left)])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup_steps": 100}, "warmup_steps"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"lr": 0}, "lr"),
        ({"warmpu_steps": 1}, "warmpu_steps"),
        ({"decay_steps": 5}, "decay_steps: got 5 with schedule linear"),
        ({"decay_shape": "linear"}, "decay_shape: got linear with schedule linear"),
        ({"final_scale": 0.1}, "final_scale: got 0.1 with schedule linear"),
        ({"schedule": "wsd", "decay_steps": 91}, "decay_steps: got 91, expected at most 90"),
        ({"muon": True, "adam_bias_correction": False}, "muon: true without adam_bias_correction"),
    ],
)
def test_settings_that_are_impossible_or_need_another_or_a_longer_run_are_refused(
    settings: dict[str, object], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        OptimConfig.from_values({"lr": 1.0, "steps": 100, "warmup_steps": 10, **settings})
