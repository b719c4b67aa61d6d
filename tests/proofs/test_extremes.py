"""Claims about extreme scores: draws, losses and gradients stay finite at the limits of half precision."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.hardness_prediction import SamplingHead
from pretrain.method.losses import discriminator_loss
from pretrain.method.sampling import predict
from pretrain.model.distribution import Dense, Distribution
from pretrain.model.heads import full_precision
from tests.pretrain.conftest import SMALL_MODEL, new_model

FP16 = torch.finfo(torch.float16)
VALUES = torch.tensor([FP16.max, FP16.min, FP16.tiny, -FP16.tiny, FP16.smallest_normal, 0.0, 11.0, -11.0, 600.0])
ROWS = 4096


def rows(seed: int) -> Tensor:
    """Half-precision scores with a gradient, each one of the extreme values."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(VALUES), (1, ROWS, 7), generator=generator)
    return VALUES[chosen].half().requires_grad_()


class Given(NamedTuple):
    """Scores that are given, in place of a head's."""

    scores_XV: torch.Tensor

    def all(self) -> torch.Tensor:
        return self.scores_XV.clone()

    def of(self, ids_X: torch.Tensor) -> torch.Tensor:
        return self.scores_XV.gather(-1, ids_X[..., None]).squeeze(-1)

    def softmax(self) -> Distribution:
        return Dense.softmax(self.scores_XV)


SETTINGS: list[dict[str, Any]] = [
    {"name": "electra"},
    {"name": "electra", "forbid_original": True},
    {"name": "hp_loss"},
    {"name": "hp_loss", "forbid_original": True},
    {"name": "hp_dist"},
    {"name": "hp_dist", "mixture": 0.1},
    {"name": "hp_dist", "forbid_original": True},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: " ".join(map(str, setting.values())))
@pytest.mark.parametrize("gamma", [0.0, 1.0, "piecewise"])
def test_nothing_overflows_at_the_ends_of_fp16(setting: dict[str, Any], gamma: float) -> None:
    logits, z, d = rows(0), rows(1), rows(2)[..., 0].detach().requires_grad_()
    original = torch.randint(7, (1, ROWS), generator=torch.Generator().manual_seed(3))
    p, wide = Dense.softmax(full_precision(logits)), full_precision(z)
    uniforms, yes = torch.rand(1, ROWS, generator=torch.Generator().manual_seed(4)), torch.ones(1, ROWS) > 0
    batch = Batch(original, yes, original, torch.arange(ROWS)[None], yes, uniforms, uniforms, ROWS, ROWS)
    prediction = predict(batch, torch.zeros(1, ROWS, SMALL_MODEL.generator_hidden_size), p, gamma)
    model = new_model(**setting | {"gamma": gamma})
    learns = isinstance(model, SamplingHead)
    if learns:
        model.score = lambda hidden: Given(wide)
    drawn, sampler_loss = model.draw(batch, prediction)
    replaced = drawn.tokens_BK != original
    loss_D = discriminator_loss(full_precision(d), replaced)
    loss = prediction.loss_BK + loss_D + sampler_loss(full_precision(d), loss_D)
    assert torch.isfinite(drawn.log_q_BK).all()
    assert (drawn.log_q_BK <= 1e-6).all()
    assert torch.isfinite(loss).all()
    gradients = torch.autograd.grad(loss.mean(), (logits, d, *((z,) if learns else ())))
    assert all(gradient.isfinite().all() for gradient in gradients)
    if model.objective.forbid_original:
        assert replaced.all()
