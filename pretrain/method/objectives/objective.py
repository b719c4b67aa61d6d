"""What every objective is: a strict configuration, and a model whose forward gives the loss."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import Field, field_validator
from torch import nn

from foundation.config import StrictConfig
from pretrain.method.losses import Gamma
from pretrain.model.config import ModelConfig
from pretrain.model.encoder import EncoderConfig

LARGEST_GAMMA = 100.0
"""Beyond it (1 - p)^gamma is 0 in fp32 wherever the generator is more than 0.6 sure: it would learn nothing more."""


class ObjectiveConfig(StrictConfig):
    """The switches of every objective; each adds those that mean something to it."""

    name: str
    """As the registry has it: a `Literal` of one."""
    gamma: Gamma = 1.0
    """Focal exponent: 0, a positive number to 100, or `piecewise` (paper, best: 1)."""
    mask_keep_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of masked positions that keep their token as the generator's input (google-research/electra: 0.15)."""

    @field_validator("gamma")
    @classmethod
    def _lets_something_be_learned(cls, gamma: Gamma) -> Gamma:
        if gamma != "piecewise" and not 0 <= gamma <= LARGEST_GAMMA:
            raise ValueError(f"got {gamma}, expected 0, a positive number to {LARGEST_GAMMA:g} or 'piecewise'")
        return gamma


class Objective(nn.Module, ABC):
    """A model with the loss it learns; `objective` holds its switches, `special_mask_id` is the id of [MASK].

    Subclasses draw their initial weights when they are made: the same order gives the same weights.
    """

    Config: ClassVar[type[ObjectiveConfig]]
    title: ClassVar[str]
    """Heads the model card."""
    exports: ClassVar[dict[str, tuple[str, ...]]]
    """What an export holds: by folder, Hugging Face's class and the modules here, the encoder first."""
    sampling_passes: ClassVar[int]
    """Products of states and vocabulary that the sampling head takes in a step: 1 forward, 2 more for its gradient."""

    def __init__(self, model: ModelConfig, objective: Any, vocab_size: int, special_mask_id: int) -> None:
        super().__init__()
        self.objective = objective
        self.special_mask_id = special_mask_id

    def start(self) -> None:
        """Initializes the objective's own parameters, given the generator's."""

    def outputs(self, batch: Any) -> dict[str, Any]:
        """The forward by the distribution that replacements are drawn from, that of training last."""
        return {"p_G": self(batch, entropies=True)}

    def exported(self, folder: str) -> nn.ModuleDict:
        """The modules in this folder of an export, under Hugging Face's names."""
        _, encoder, *heads = self.exports[folder]
        return nn.ModuleDict({"electra": getattr(self, encoder)} | {head: getattr(self, head) for head in heads})

    @staticmethod
    @abstractmethod
    def encoders(model: ModelConfig, vocab_size: int) -> tuple[EncoderConfig, ...]:
        """Those of the model, first the one that predicts masked tokens."""
