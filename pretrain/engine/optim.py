"""Optimizer settings, the learning-rate schedule, and the choice of parameters with weight decay."""

import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator
from torch import nn

from electra_sampler.foundation.config import MOST, StrictConfig
from pretrain.engine.muon import moved_by_muon

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(StrictConfig):
    """AdamW, or Muon and AdamW, with decoupled weight decay, and the schedule of the learning rate."""

    lr: float = Field(ge=1e-30, le=1e30)
    """Peak learning rate (paper: 5e-4 small, 1e-4 base)."""
    steps: int = Field(gt=0, le=MOST)
    """Steps in the whole run (paper: 1M small, 765k base)."""
    warmup_steps: int = Field(default=10_000, ge=0, le=MOST)
    """Updates of linear warm-up (paper: 10k)."""
    schedule: Literal["linear", "wsd"] = "linear"
    """After the warm-up: `linear` decay to 0 (paper), or constant until the last `decay_steps` updates (`wsd`)."""
    decay_steps: int = Field(default=0, ge=0, le=MOST)
    """Updates of the decay that ends a run with schedule=wsd; 0 for a stable run, from which others may start."""
    decay_shape: Literal["sqrt", "linear"] = "sqrt"
    """Decay of schedule=wsd, as a function of its share u that is done: 1 - sqrt(u) (ModernBERT), or 1 - u."""
    final_scale: float = Field(default=0.0, ge=0, le=1)
    """Rate at the end of the decay of schedule=wsd, as a share of `lr` (ModernBERT: .001)."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Adam's decay rates of both moments (paper)."""
    eps: ClassVar[float] = 1e-6
    """Adam's epsilon (paper)."""
    weight_decay: float = Field(default=0.01, ge=0, le=100)
    """Decoupled weight decay, except on LayerNorm and biases (google-research/electra; not in the paper)."""
    gradient_clipping: float = Field(default=1.0, ge=0)
    """Largest global norm of the gradient, 0 for no clipping (google-research/electra; not in the paper)."""
    muon: bool = False
    """Muon for the matrices of the layers, at this learning rate and weight decay, and AdamW for the rest."""
    adam_bias_correction: bool = True
    """Adam's bias correction; google-research/electra has none: its first updates are up to sqrt(10) times as large."""

    @model_validator(mode="after")
    def _decay_follows_warmup(self) -> "OptimConfig":
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps: got {self.warmup_steps}, expected fewer than steps ({self.steps})")
        for name in ("decay_steps", "decay_shape", "final_scale"):
            if self.schedule == "linear" and (given := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: got {given} with schedule linear; set schedule=wsd, or leave it out")
        if self.decay_steps > (left := self.steps - self.warmup_steps):
            raise ValueError(
                f"decay_steps: got {self.decay_steps}, expected at most {left}, the steps after the warm-up"
            )
        if self.muon and not self.adam_bias_correction:
            raise ValueError("muon: true without adam_bias_correction, which would change its rate; leave one out")
        return self

    def rate(self, updates: int) -> float:
        """Returns the learning rate of the update that follows `updates` updates; a resume needs no other state."""
        if self.schedule == "linear":
            return learning_rate(updates, base=self.lr, warmup_steps=self.warmup_steps, total_steps=self.steps)
        rising = min(1.0, (updates + 1) / max(1, self.warmup_steps))
        done = max(0, updates - (self.steps - self.decay_steps)) / max(1, self.decay_steps)
        left = 1 - (math.sqrt(done) if self.decay_shape == "sqrt" else done)
        return self.lr * rising * (self.final_scale + (1 - self.final_scale) * left)


def learning_rate(step: int, *, base: float, warmup_steps: int, total_steps: int) -> float:
    """Returns the learning rate of the next update after `step` updates: linear warm-up, then linear decay.

    It is 0 only from `total_steps` on. It depends only on the number of updates, so a resume needs no stored state.
    """
    rising = (step + 1) / max(1, warmup_steps)
    falling = (total_steps - step) / (total_steps - warmup_steps)
    return base * max(0.0, min(rising, falling, 1.0))


class AdamScale(NamedTuple):
    """Factors that multiply AdamW's settings for one update."""

    learning_rate: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0


UNSCALED = AdamScale()


def without_bias_correction(updates: int, betas: tuple[float, float]) -> AdamScale:
    """Returns factors with which PyTorch's AdamW makes its next update without bias correction.

    This is google-research/electra's update after `updates` updates.

    PyTorch: w <- (1 - lr wd) w - lr/c1 m / (sqrt(v)/c2 + eps), c1 = 1 - beta1^t, c2 = sqrt(1 - beta2^t), with
    t = updates + 1. With lr c1/c2 for lr, eps/c2 for eps and wd c2/c1 for wd, c1 and c2 cancel: the result is exact.
    """
    c1, c2 = 1 - betas[0] ** (updates + 1), math.sqrt(1 - betas[1] ** (updates + 1))
    return AdamScale(c1 / c2, 1 / c2, c2 / c1)


def decays(name: str) -> bool:
    """Returns true if weight decay applies to the parameter of this name: not to LayerNorms and biases.

    This is google-research/electra's and UniLM's rule; it also exempts the relative position bias table.
    """
    return "norm" not in name.lower() and "bias" not in name


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = OptimConfig.eps,
    lr_scale: Callable[[str], float] = lambda name: 1.0,
    muon: bool = False,
) -> list[dict[str, Any]]:
    """Groups the parameters by weight decay, by `lr_scale(name)` (layer-wise decay in fine-tuning), and by optimizer.

    Each group holds `params`, AdamW's numbers except the learning rate, `lr_scale` and `matrices`: the shape (P, N, M)
    of the matrices in each of its parameters, or () if AdamW moves them. A shared parameter appears once, under its
    first name.
    """
    moved = dict(moved_by_muon(model)) if muon else {}
    groups: dict[tuple[float, float, tuple[int, ...]], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        kind = weight_decay if decays(name) else 0.0, lr_scale(name), moved.get(name, ())
        groups.setdefault(kind, []).append(parameter)
    return [
        {
            "params": parameters,
            "betas": betas,
            "eps": eps,
            "weight_decay": decay,
            "lr_scale": scale,
            "matrices": matrices,
        }
        for (decay, scale, matrices), parameters in groups.items()
    ]
