"""Sizes and switches of an encoder, and what a layer of it costs."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class EncoderSizes(ABC):
    """The sizes that every kind of encoder has; field names follow Hugging Face's."""

    vocab_size: int
    embedding_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size: got {self.hidden_size}, expected a multiple of heads ({self.num_attention_heads})"
            )

    @abstractmethod
    def layer_flops(self, length: int) -> float:
        """Returns FLOPs per word piece of one layer's forward, averaged over the layers."""

    @property
    @abstractmethod
    def layer_elements(self) -> int:
        """How many activation values a layer keeps for the backward pass, per word piece."""

    @property
    def learns_bias(self) -> bool:
        """True if attention adds a learned bias to its scores."""
        return False


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(EncoderSizes):
    """ELECTRA's sizes and switches; field names follow Hugging Face's `ElectraConfig` where it has them."""

    type_vocab_size: int = 2
    relative_position: bool = True
    """T5's relative position bias, added to the scaled attention scores, in addition to absolute positions."""
    relative_attention_num_buckets: int = 32
    """T5's value."""
    relative_attention_max_distance: int = 128
    """T5's value, in word pieces."""
    relative_bias_init: Literal["t5", "local"] = "t5"
    """`t5`: normal with standard deviation H^-1/2, as in T5. `local`: each head prefers its left or right neighbor."""

    def layer_flops(self, length: int) -> float:
        hidden = self.hidden_size
        return 2.0 * (4 * hidden * hidden + 2 * hidden * self.intermediate_size + 2 * length * hidden)

    @property
    def layer_elements(self) -> int:
        """Counts the layer's input; query, key, value and output of attention; the inputs of both LayerNorms; input and
        output of GELU, and the input of the dense layer before it.
        """
        return 8 * self.hidden_size + 2 * self.intermediate_size

    @property
    def learns_bias(self) -> bool:
        return self.relative_position
