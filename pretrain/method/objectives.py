"""What a run trains: how replacements are sampled and how the losses are weighed."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator

from foundation.config import StrictConfig
from pretrain.method.losses import Gamma

LARGEST_GAMMA = 100.0
"""Beyond it (1 - p)^gamma is 0 in fp32 wherever the generator is more than 0.6 sure: it would learn nothing more."""
ObjectiveName = Literal["hp_loss", "hp_dist", "electra", "mlm"]


class ObjectiveConfig(StrictConfig):
    """How replacements are sampled and how the losses are weighed.

    `mlm` is a baseline without replacements: an encoder of the discriminator's size learns L_G alone.
    """

    name: ObjectiveName = "hp_loss"
    gamma: Gamma = 1.0
    """Focal exponent: 0, a positive number to 100, or `piecewise` (paper, best: 1)."""
    lambda1: float = Field(default=5.0, ge=0, le=1e6)
    """Weight of the sampling head's loss (paper: 5 for HP_Loss, 1 for HP_Dist); beside 1e6 fp32 rounds L_G away."""
    lambda2: float = Field(default=50.0, ge=0, le=1e6)
    """Weight of the discriminator's loss (paper and ELECTRA: 50)."""
    temperature: float = Field(default=1.0, gt=0)
    """Of the sampling distribution: p_G^(1/T) before it is reweighed, p_S^(1/T) for HP_Dist (ELECTRA: 1)."""
    forbid_original: bool = False
    """The original token is never sampled (google-research/electra `disallow_correct`)."""
    importance_weighting: bool = False
    """L_D of a masked position is weighed by p_G/p_S of its token: the estimator of the paper's proposition.

    Its expectation is the masked position's loss under p_G exactly where a sequence has one mask; with several it is
    approximate, because the loss also depends on what was drawn at the other masks. Unmasked positions weigh 1.
    """
    detach_sampler_input: bool = False
    """L_S teaches the sampling head and its bias alone, not the generator and the embeddings (the paper is silent)."""
    mixture: float = Field(default=0.0, ge=0, lt=1)
    """HP_Dist samples from (1 - mixture) p_S + mixture p_G, which bounds p_G over the proposal by 1/mixture."""
    ratio_clip: float | None = Field(default=None, gt=0, le=1e30)
    """HP_Dist: largest p_G over proposal in L_S; it moves the optimum away from the paper's p_S."""
    mask_keep_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of masked positions that keep their token as the generator's input (google-research/electra: 0.15)."""

    @model_validator(mode="after")
    def _switches_fit(self) -> "ObjectiveConfig":
        problems = [problem for wrong, problem in self._mistakes() if wrong]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _mistakes(self) -> Iterator[tuple[bool, str]]:
        yield (
            self.gamma != "piecewise" and not 0 <= self.gamma <= LARGEST_GAMMA,
            f"gamma: got {self.gamma}, expected 0, a positive number to {LARGEST_GAMMA:g} or 'piecewise'",
        )
        yield (
            self.importance_weighting and self.forbid_original,
            "importance_weighting: true with forbid_original, which samples no original to weigh; switch one off",
        )
        for switch, names in SWITCHES_OF.items():
            value = getattr(self, switch)
            yield (
                value != ObjectiveConfig.model_fields[switch].default and self.name not in names,
                f"{switch}: got {value}, which {self.name} has no use for; leave it out or choose {' or '.join(names)}",
            )

    @property
    def learns_to_sample(self) -> bool:
        return self.name in ("hp_loss", "hp_dist")


SWITCHES_OF: dict[str, tuple[ObjectiveName, ...]] = {
    "temperature": ("hp_loss", "hp_dist", "electra"),
    "forbid_original": ("hp_loss", "hp_dist", "electra"),
    "importance_weighting": ("hp_loss", "hp_dist", "electra"),
    "detach_sampler_input": ("hp_loss", "hp_dist"),
    "mixture": ("hp_dist",),
    "ratio_clip": ("hp_dist",),
}
"""The objectives that a switch means something to; any other refuses it."""
