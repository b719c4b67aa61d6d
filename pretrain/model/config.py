"""Model sizes of a run: the discriminator's, from which the generator's are derived. One class per kind of encoder."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator
from torch import nn

from electra_sampler.foundation.config import StrictConfig
from pretrain.model.encoder import ElectraEncoder, ElectraStack, Embeddings, Encoder, Stack, TokenEmbeddings
from pretrain.model.gdes import DisentangledEmbeddings
from pretrain.model.heads import DiscriminatorHead, VocabularyTransform
from pretrain.model.modern import (
    DisentangledWords,
    ModernConfig,
    ModernDiscriminatorHead,
    ModernEncoder,
    ModernStack,
    ModernTransform,
    WordEmbeddings,
)
from pretrain.model.sizes import EncoderConfig, EncoderSizes

Width = Annotated[int, Field(gt=0, le=2**17)]
"""A layer width; the limit is nearly twice the widest published dense model (PaLM's feed-forward layer, 73,728)."""

WIDEST_HEAD = 128
"""Largest head size of attention in Triton. Up to it, tiles fit the shared memory of every GPU from compute capability
8.0 on: 99 KB at 8.6, 8.9 and 12.0, more at others."""


class Parts(NamedTuple):
    """One kind of encoder: the class of its configuration, and the modules that are built from one."""

    config: type[EncoderSizes]
    encoder: Callable[..., Encoder]
    """The encoder, built from its configuration and embeddings."""
    embeddings: Callable[..., TokenEmbeddings]
    disentangled: Callable[..., TokenEmbeddings]
    """Embeddings of a discriminator under gradient-disentangled sharing, built from the generator's."""
    transform: Callable[..., nn.Module]
    """Maps hidden states to the space of word embeddings, for scores over the vocabulary."""
    detector: Callable[..., nn.Module]
    """Maps hidden states to the discriminator's logits."""
    layers: Callable[..., Stack]
    """The layers without embeddings, which a forecast times."""


class ModelConfig(StrictConfig):
    """Sizes of the discriminator, and the width of the generator, whose other sizes are derived."""

    parts: ClassVar[Parts]
    backbone: str
    """Kind of encoder; a preset chooses it."""
    layers: int = Field(gt=0, le=1024)
    """Transformer layers of each encoder; the deepest model trained so far has 1,000 (DeepNet)."""
    hidden_size: Width
    """Width of the discriminator."""
    heads: Width
    """Attention heads of the discriminator; the generator has the same head size."""
    intermediate_size: Width
    """Width of the discriminator's feed-forward layer."""
    embedding_size: Width
    """Width of the word embeddings."""
    generator_hidden_size: Width
    """Width of the generator: 1/4 (small) or 1/3 (base) of the discriminator's."""
    embedding_sharing: Literal["es", "nes", "gdes"] = "es"
    """Embeddings of the two encoders: one set (`es`, paper), two (`nes`), or two whose difference L_D trains (`gdes`).
    `gdes` is DeBERTa-v3's gradient-disentangled sharing: E_D = sg(E_G) + Delta for words and positions."""
    max_positions: Width = 512
    """Longest sequence, in word pieces (google-research/electra)."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of hidden states (google-research/electra; not in the paper)."""
    attention_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights (google-research/electra; not in the paper)."""
    initializer_range: float = Field(default=0.02, ge=1e-6, le=1)
    """Standard deviation of initial weights (google-research/electra); narrow models learn sooner at 1/sqrt(width)."""

    @model_validator(mode="after")
    def _heads_divide_widths(self) -> "ModelConfig":
        self.discriminator(vocab_size=1)  # raises for sizes that this kind of encoder cannot compute
        head_size = self.hidden_size // self.heads
        if self.generator_hidden_size >= head_size and self.generator_hidden_size % head_size:
            raise ValueError(
                f"generator_hidden_size: got {self.generator_hidden_size}, expected a multiple of {head_size},"
                " the head size (hidden_size / heads)"
            )
        if self.intermediate_size * self.generator_hidden_size < self.hidden_size:
            raise ValueError(
                f"intermediate_size: got {self.intermediate_size}, expected at least"
                f" {math.ceil(self.hidden_size / self.generator_hidden_size)}: the generator's is scaled down"
                f" like its width, from {self.hidden_size} to {self.generator_hidden_size}, and would be 0"
            )
        self.generator(vocab_size=1)
        return self

    def discriminator(self, vocab_size: int) -> EncoderSizes:
        return self._encoder(vocab_size, self.hidden_size, self.heads, self.intermediate_size)

    def generator(self, vocab_size: int) -> EncoderSizes:
        """Returns the generator's sizes: depth and head size as the discriminator's; number of heads and feed-forward
        width scaled with its width (as in google-research/electra).
        """
        width = self.generator_hidden_size
        heads = max(1, width * self.heads // self.hidden_size)
        return self._encoder(vocab_size, width, heads, self.intermediate_size * width // self.hidden_size)

    def _encoder(self, vocab_size: int, hidden_size: int, heads: int, intermediate_size: int) -> EncoderSizes:
        own = self.model_dump(include={field.name for field in fields(self.parts.config)})
        sizes = {
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "intermediate_size": intermediate_size,
            "max_position_embeddings": self.max_positions,
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.attention_dropout,
        }
        return self.parts.config(**own | sizes)


class ElectraModelConfig(ModelConfig):
    """ELECTRA's encoder, with T5's relative positions (paper)."""

    parts = Parts(
        EncoderConfig,
        ElectraEncoder,
        Embeddings,
        DisentangledEmbeddings,
        VocabularyTransform,
        DiscriminatorHead,
        ElectraStack,
    )
    backbone: Literal["electra"] = "electra"
    relative_position: bool = True
    """T5's relative position bias (paper section 4.1)."""
    relative_bias_init: Literal["t5", "local"] = "t5"
    """Initial relative position bias: T5's, or `local`, with which short runs leave the unigram plateau."""
    layer_norm_eps: float = Field(default=1e-12, ge=1e-30, le=0.01)
    """Added to the variance in every LayerNorm (BERT and google-research/electra; 1e-5 in microsoft/mpnet-base)."""


class ModernModelConfig(ModelConfig):
    """ModernBERT's encoder: rotary positions, windows of attention, gated feed-forward layers."""

    parts = Parts(
        ModernConfig,
        ModernEncoder,
        WordEmbeddings,
        DisentangledWords,
        ModernTransform,
        ModernDiscriminatorHead,
        ModernStack,
    )
    backbone: Literal["modern"] = "modern"
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention weights (ModernBERT: none)."""
    layer_norm_eps: float = Field(default=1e-5, ge=1e-30, le=0.01)
    """Added to the variance in every LayerNorm (ModernBERT)."""
    global_every: int = Field(default=3, gt=0, le=1024)
    """Layers 0, n, 2n, ... attend to all tokens, the others to a window (ModernBERT: n = 3)."""
    window: int = Field(default=128, gt=0, le=2**17, multiple_of=2)
    """Tokens around each one that a layer with a window attends to, half on each side (ModernBERT)."""
    global_theta: float = Field(default=10_000.0, gt=1, le=1e9)
    """Base of rotary positions where attention is to all tokens: 10,000, or 160,000 for length 8,192 (ModernBERT)."""
    local_theta: float = Field(default=10_000.0, gt=1, le=1e9)
    """Base of rotary positions where attention is to a window (ModernBERT)."""


KINDS: dict[str, type[ModelConfig]] = {"electra": ElectraModelConfig, "modern": ModernModelConfig}
"""Kinds of encoder, by `backbone`."""
