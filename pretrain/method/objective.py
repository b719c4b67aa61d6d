"""The interface of every objective: a strict configuration, and a model whose forward returns the loss.

Shape letters: B batch, L length, K masked positions per sequence.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

from pydantic import Field, field_validator
from torch import Tensor, nn

from electra_sampler.foundation.config import StrictConfig
from pretrain.data.batches import Batch
from pretrain.data.shards import Shards
from pretrain.method.losses import Gamma
from pretrain.method.sampling import Draw, Prediction
from pretrain.model.config import ModelConfig
from pretrain.model.sizes import EncoderSizes

LARGEST_GAMMA = 100.0
"""Above it, (1 - p)^gamma is 0 in fp32 wherever p exceeds 0.6, and such positions would contribute no gradient."""


class Cost(NamedTuple):
    """Cost of a step, apart from the forward and backward passes of the encoders."""

    vocabulary_products: int = 0
    """Matrix products over the vocabulary at the masked positions: 1 per forward of a head, 2 more for its gradient."""
    discriminator_forwards: int = 0
    """Forwards of the discriminator without a gradient."""
    keeps_scores: bool = False
    """True if a draw needs the scores of all tokens at once, even where `ops.softmax` avoids storing them."""


class ObjectiveConfig(StrictConfig):
    """Settings shared by every objective; each subclass adds its own."""

    name: str
    """Name of the objective in records; subclasses narrow it to a `Literal` with that default."""

    @property
    def cost(self) -> Cost:
        return Cost()


class PredictionConfig(ObjectiveConfig):
    """Settings of an objective that learns to predict masked tokens."""

    gamma: Gamma = 1.0
    """Exponent of the focal loss: 0 to 100, or `piecewise` (paper, best: 1); 0 is cross-entropy."""
    mask_keep_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of masked positions where the generator sees the original token (google-research/electra: 0.15)."""

    @property
    def cost(self) -> Cost:
        return Cost(vocabulary_products=3)

    @field_validator("gamma")
    @classmethod
    def _lets_something_be_learned(cls, gamma: Gamma) -> Gamma:
        if gamma != "piecewise" and not 0 <= gamma <= LARGEST_GAMMA:
            raise ValueError(f"got {gamma}, expected 0, a positive number up to {LARGEST_GAMMA:g} or 'piecewise'")
        return gamma


class Detected(NamedTuple):
    """Replacements and the discriminator's answers to them, detached."""

    draw: Draw
    sampler_loss_BK: Tensor
    discriminator_loss_BL: Tensor
    d_BL: Tensor
    """The discriminator's logits; positive means "replaced"."""
    replaced_BL: Tensor
    """True where the discriminator's input differs from the original token."""


class Output(NamedTuple):
    """The result of one forward: the loss to differentiate, and detached per-position tensors for the metrics."""

    loss: Tensor
    generator_loss_BK: Tensor
    log_p_original_BK: Tensor
    """log p_G(x) of the original tokens."""
    top_BK: Tensor
    """The most likely ids."""
    log_max_p_G_BK: Tensor
    """Log-probability of the most likely ids."""
    entropy_p_G_BK: Tensor | None
    """Entropy of p_G in nats, if requested."""
    detected: Detected | None = None

    @classmethod
    def of(cls, loss: Tensor, prediction: Prediction, detected: Detected | None = None) -> "Output":
        return cls(
            loss,
            prediction.loss_BK.detach(),
            prediction.log_p_original_BK.detach(),
            prediction.p.top_X,
            prediction.p.log_largest_X,
            prediction.entropy_BK,
            detected,
        )


Text = Callable[[], Shards] | None
"""Opens the shards that a run trains on; call it only while drawing."""


class Objective(nn.Module, ABC):
    """A model together with its loss; `objective` holds its settings, `special_mask_id` is the id of [MASK]."""

    Config: ClassVar[type[ObjectiveConfig]]
    title: ClassVar[str]
    """Title of the model card."""
    exports: ClassVar[dict[str, tuple[str, ...]]]
    """Content of an export: for each folder, the Hugging Face class and the names of the modules, encoder first."""

    def __init__(
        self, model: ModelConfig, objective: ObjectiveConfig, vocab_size: int, special_mask_id: int, text: Text = None
    ) -> None:
        super().__init__()
        self.objective, self.special_mask_id, self.text = objective, special_mask_id, text
        self.build(model, vocab_size)

    @abstractmethod
    def build(self, model: ModelConfig, vocab_size: int) -> None:
        """Makes the modules, which draw their initial weights: their order determines the weights of a seed."""

    @abstractmethod
    def forward(self, batch: Batch, entropies: bool = False) -> Output:
        """Computes the losses of one micro-batch; with `entropies`, also the entropies of p_G and of x'."""

    def start(self) -> None:
        """Initializes the objective's own parameters, after the generator's."""

    def outputs(self, batch: Batch) -> Mapping[str, Output]:
        """Runs the forward once per sampling distribution; returns the outputs by name, the one in training last."""
        return {"p_G": self(batch, entropies=True)}

    def exported(self, folder: str) -> nn.ModuleDict:
        """Returns the modules in this folder of an export, under Hugging Face's names."""
        _, encoder, *heads = self.exports[folder]
        modules = {head: getattr(self, head) for head in heads}
        return nn.ModuleDict({"electra": getattr(self, encoder).standalone(), **modules})

    @staticmethod
    @abstractmethod
    def encoders(model: ModelConfig, vocab_size: int) -> tuple[EncoderSizes, ...]:
        """Returns the configurations of the model's encoders, the one that predicts masked tokens, if any, first."""
