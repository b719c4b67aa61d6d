"""The interface of every objective: a strict configuration, and a model whose forward returns the loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import Field, field_validator
from torch import nn

from foundation.config import StrictConfig
from pretrain.data.shards import Shards
from pretrain.method.losses import Gamma
from pretrain.model.config import ModelConfig
from pretrain.model.encoder import EncoderConfig

LARGEST_GAMMA = 100.0
"""Above it, (1 - p)^gamma is 0 in fp32 wherever p exceeds 0.6, and such positions would contribute no gradient."""


class ObjectiveConfig(StrictConfig):
    """Settings shared by every objective; each subclass adds its own."""

    name: str
    """Name in the registry; subclasses narrow it to a `Literal`."""

    @property
    def extra_forwards(self) -> int:
        """Forwards of the discriminator per step for sampling, without a gradient."""
        return 0


class PredictionConfig(ObjectiveConfig):
    """Settings of an objective that learns to predict masked tokens."""

    gamma: Gamma = 1.0
    """Exponent of the focal loss: 0 to 100, or `piecewise` (paper, best: 1); 0 is cross-entropy."""
    mask_keep_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of masked positions where the generator sees the original token (google-research/electra: 0.15)."""

    @property
    def draws_from_scores(self) -> bool:
        """True if a draw needs every token's score, even where the softmax does not (`ops.softmax`)."""
        return False

    @field_validator("gamma")
    @classmethod
    def _lets_something_be_learned(cls, gamma: Gamma) -> Gamma:
        if gamma != "piecewise" and not 0 <= gamma <= LARGEST_GAMMA:
            raise ValueError(f"got {gamma}, expected 0, a positive number to {LARGEST_GAMMA:g} or 'piecewise'")
        return gamma


class Objective(nn.Module, ABC):
    """A model together with its loss; `objective` holds its settings, `special_mask_id` is the id of [MASK].

    Subclasses draw initial weights in their constructor, so the order of construction determines the weights of a seed.
    """

    Config: ClassVar[type[ObjectiveConfig]]
    title: ClassVar[str]
    """Title of the model card."""
    exports: ClassVar[dict[str, tuple[str, ...]]]
    """Content of an export: for each folder, the Hugging Face class and the names of the modules, encoder first."""
    sampling_passes: ClassVar[int]
    """Matrix products over the vocabulary per step for the sampling head: 1 forward, 2 more for its gradient."""
    text: Callable[[], Shards]
    """Opens the shards that the run trains on; `build_model` sets it, and only drawing may call it."""

    def __init__(self, model: ModelConfig, objective: Any, vocab_size: int, special_mask_id: int) -> None:
        super().__init__()
        self.objective = objective
        self.special_mask_id = special_mask_id

    def start(self) -> None:
        """Initializes the objective's own parameters, after the generator's."""

    def outputs(self, batch: Any) -> dict[str, Any]:
        """Runs the forward for each sampling distribution; returns the outputs by its name, training's last."""
        return {"p_G": self(batch, entropies=True)}

    def exported(self, folder: str) -> nn.ModuleDict:
        """Returns the modules in this folder of an export, under Hugging Face's names."""
        _, encoder, *heads = self.exports[folder]
        modules = {head: getattr(self, head) for head in heads}
        return nn.ModuleDict({"electra": getattr(self, encoder).whole(), **modules})

    @staticmethod
    @abstractmethod
    def encoders(model: ModelConfig, vocab_size: int) -> tuple[EncoderConfig, ...]:
        """Returns the configurations of the model's encoders, the one that predicts masked tokens, if any, first."""
