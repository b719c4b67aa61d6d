"""The Transformer encoder shared by generator, discriminator and every fine-tuned model.

Parameter names are Hugging Face's `ElectraModel`'s, so loading and exporting copy weights without renaming;
relative position adds one table. Exports with it carry a plain form of this model:
`pretrain/huggingface/modeling_electra_sampler.py`.

Shape letters: B batch, L length, T positions computed, E embedding size, H hidden size, N heads, D head size,
F feed-forward size, V vocabulary.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretrain.model import ops
from pretrain.model.sizes import EncoderConfig, EncoderSizes


class Layer(nn.Module):
    """Self-attention and feed-forward, each followed by dropout, residual and LayerNorm (post-norm, as BERT)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = ResidualOutput(config.intermediate_size, config)

    def forward(self, hidden_TH: Tensor, packing: "TokenPacking", bias: ops.Bias) -> Tensor:
        attended_TH = self.attention(hidden_TH, packing, bias)
        return self.output(self.intermediate(attended_TH), attended_TH)


class Attention(nn.Module):
    """Multi-head self-attention with its output projection, dropout, residual connection and LayerNorm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = ResidualOutput(config.hidden_size, config)

    def forward(self, hidden_TH: Tensor, packing: "TokenPacking", bias: ops.Bias) -> Tensor:
        return self.output(self.self(hidden_TH, packing, bias), hidden_TH)


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(D) + bias) V, heads concatenated."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.query = ops.Linear(config.hidden_size, config.hidden_size)
        self.key = ops.Linear(config.hidden_size, config.hidden_size)
        self.value = ops.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_TH: Tensor, packing: "TokenPacking", bias: ops.Bias) -> Tensor:
        projected = ops.linears(hidden_TH, (self.query, self.key, self.value))
        query_BNLD, key_BNLD, value_BNLD = (packing.heads(part_TH, self.num_heads) for part_TH in projected)
        context_BNLD = bias.attend(query_BNLD, key_BNLD, value_BNLD, self.dropout if self.training else 0.0)
        return packing.pack(context_BNLD.transpose(1, 2).flatten(2))


class Intermediate(nn.Module):
    """The feed-forward expansion: a dense layer, then GELU in its exact (erf) form."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = ops.GeluLinear(config.hidden_size, config.intermediate_size)

    def forward(self, hidden_TH: Tensor) -> Tensor:
        return self.dense(hidden_TH)


class ResidualOutput(nn.Module):
    """LayerNorm(residual + dropout(dense(x))): the last step of attention and of feed-forward."""

    def __init__(self, in_features: int, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = ops.Linear(in_features, config.hidden_size)
        self.LayerNorm = ops.ResidualLayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob

    def forward(self, x_TX: Tensor, residual_TH: Tensor) -> Tensor:
        return ops.residual_output(x_TX, self.dense, residual_TH, self.dropout, self.LayerNorm)


class TokenEmbeddings(nn.Module):
    """The input embeddings of an encoder; generator and discriminator share one instance (paper section 3.1, after
    ELECTRA), unless `model.embedding_sharing` says otherwise.
    """

    word_embeddings: "TiedEmbedding"

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Sets the embeddings to `weights`, by name; disentangled embeddings set Delta so that E_D equals them."""
        self.load_state_dict(weights)

    def plain(self) -> "TokenEmbeddings":
        """Returns the embeddings as a single ordinary module: here, this module itself."""
        return self


class Embeddings(TokenEmbeddings):
    """Word, position and segment embeddings summed, then LayerNorm and dropout: ids [B, L] -> [B, L, E]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        size = config.embedding_size
        self.word_embeddings = TiedEmbedding(config.vocab_size, size)
        self.position_embeddings = ops.Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = ops.Embedding(config.type_vocab_size, size)
        self.LayerNorm = ops.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = ops.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor) -> Tensor:
        position_L = torch.arange(input_ids_BL.shape[1], device=input_ids_BL.device)
        embedded_BLE = self.word_embeddings(input_ids_BL) + self.token_type_embeddings(token_type_ids_BL)
        return self.dropout(self.LayerNorm(embedded_BLE + self.position_embeddings(position_L)))


class TiedEmbedding(nn.Embedding):
    """An embedding that is also the output matrix of the vocabulary heads.

    Every use of the matrix goes through this module's forward: under ZeRO-3 a weight exists only while its own module
    runs.
    """

    def forward(
        self, input: Tensor, use: Callable[[Tensor, Tensor], Tensor] | None = None, frozen: bool = False
    ) -> Tensor:
        """Returns `use(input, matrix)`; by default, the matrix rows of the ids `input` [...], [..., E].

        With `frozen`, no gradient reaches the matrix [V, E].
        """
        return (use or ops.look_up)(input, self.weight.detach() if frozen else self.weight)


class Encoder(nn.Module):
    """Maps ids to hidden states: `forward(input_ids_BL, attention_mask_BL, token_type_ids_BL)` -> [B, L, H].

    `attention_mask_BL` is true (or 1) except at padding, which follows the word pieces.
    """

    config: EncoderSizes
    embeddings: TokenEmbeddings

    def standalone(self) -> Self:
        """Returns the encoder for export: itself or, with disentangled embeddings, a copy whose embeddings hold E_D.

        The copy shares all other weights.
        """
        embeddings = self.embeddings.plain()
        if embeddings is self.embeddings:
            return self
        view = copy.copy(self)
        view._modules = self._modules | {"embeddings": embeddings}
        return view


class ElectraEncoder(Encoder):
    """Embeddings, their projection when sizes differ, and the Transformer layers; Hugging Face's `ElectraModel`."""

    config: EncoderConfig

    def __init__(self, config: EncoderConfig, embeddings: Embeddings | None = None) -> None:
        super().__init__()
        self.config = config
        self.embeddings = embeddings if embeddings is not None else Embeddings(config)
        differ = config.embedding_size != config.hidden_size
        self.embeddings_project = ops.Linear(config.embedding_size, config.hidden_size) if differ else nn.Identity()
        self.encoder = ElectraStack(config)
        for module in self.modules():  # LayerNorms start at 1 and 0, as in google-research/electra
            if isinstance(module, (nn.Linear, nn.Embedding)):
                initialize_matrix(module, config.initializer_range)
        if config.relative_position:
            initialize_relative_bias(self.encoder.relative_attention_bias, config)

    def forward(self, input_ids_BL: Tensor, attention_mask_BL: Tensor, token_type_ids_BL: Tensor) -> Tensor:
        hidden_BLH = self.embeddings_project(self.embeddings(input_ids_BL, token_type_ids_BL))
        return self.encoder(hidden_BLH, attention_mask_BL)


class TokenPacking(NamedTuple):
    """The positions that layers compute: all T = B L of them or, outside attention, only those without padding."""

    shape: torch.Size
    """[B, L]."""
    token_T: Tensor | None
    """Places of the tokens; None for all positions."""

    def pack(self, values_BLX: Tensor) -> Tensor:
        """Returns the values at these positions, [T, X]."""
        values_RX = values_BLX.flatten(0, 1)
        return values_RX if self.token_T is None else values_RX.index_select(0, self.token_T)

    def pad(self, values_TX: Tensor) -> Tensor:
        """Returns the values [B, L, X], 0 at padding."""
        if self.token_T is not None:
            zeros_RX = values_TX.new_zeros(self.shape.numel(), values_TX.shape[1])
            values_TX = zeros_RX.index_copy(0, self.token_T, values_TX)
        return values_TX.unflatten(0, self.shape)

    def heads(self, values_TH: Tensor, count: int) -> Tensor:
        """Returns the values padded and divided among `count` heads, [B, N, L, D]."""
        return self.pad(values_TH).unflatten(2, (count, -1)).transpose(1, 2)


class Stack(nn.Module):
    """The Transformer layers of an encoder."""

    layer: nn.ModuleList
    packs = True
    """Skips padding where `ops.tokens_of` does; off for compiled layers (static shapes)."""
    recompute = False
    """Activation checkpointing: recomputes each layer in the backward, with the same dropout."""

    def packing(self, visible_BL: Tensor) -> TokenPacking:
        return TokenPacking(visible_BL.shape, ops.tokens_of(visible_BL) if self.packs else None)

    def run(self, layer: nn.Module, *inputs: Tensor | TokenPacking | ops.Bias) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return cast(Tensor, checkpoint(layer, *inputs, use_reentrant=False))
        return cast(Tensor, layer(*inputs))


class ElectraStack(Stack):
    """The Transformer layers and the relative position table they share (T5: one table, used by every layer)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        if config.relative_position:
            self.relative_attention_bias = ops.Embedding(
                config.relative_attention_num_buckets, config.num_attention_heads
            )

    def forward(self, hidden_BLH: Tensor, attention_mask_BL: Tensor) -> Tensor:
        visible_BL = attention_mask_BL.bool()
        packing, bias = self.packing(visible_BL), self.attention_bias(visible_BL, hidden_BLH.dtype)
        hidden_TH = packing.pack(hidden_BLH)
        for layer in self.layer:
            hidden_TH = self.run(layer, hidden_TH, packing, bias)
        return packing.pad(hidden_TH)

    def attention_bias(self, visible_BL: Tensor, dtype: torch.dtype) -> ops.Bias:
        """Returns the bias added to the scaled scores, built once for all layers: relative position and padding."""
        buckets = self.config.relative_attention_num_buckets
        max_distance = self.config.relative_attention_max_distance

        def relative(distance_X: Tensor) -> Tensor:
            return self.relative_attention_bias(relative_bucket(distance_X, buckets, max_distance))

        given, reach = (relative, max_distance) if self.config.relative_position else (None, visible_BL.shape[1])
        head_size = self.config.hidden_size // self.config.num_attention_heads
        return ops.attention_bias(visible_BL, given, reach, head_size, dtype)


def initialize_matrix(module: nn.Linear | nn.Embedding, deviation: float) -> None:
    """Fills a weight from a normal distribution truncated at two standard deviations, and a bias with zeros (as
    google-research/electra `modeling.create_initializer`).
    """
    nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def relative_bucket(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Returns T5's bidirectional bucket of each signed distance (Raffel et al. 2020, section 2.1).

    Each direction has half of the buckets. Of those, the first half hold one distance each; the rest are spaced
    logarithmically up to `max_distance`.
    """
    per_direction = num_buckets // 2
    exact = per_direction // 2
    magnitude = distance.abs()
    growth = torch.log(magnitude.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    logarithmic = exact + (growth * (per_direction - exact)).long()
    bucket = torch.where(magnitude < exact, magnitude, logarithmic.clamp(max=per_direction - 1))
    return bucket + per_direction * (distance > 0)


LOCAL_BIAS_SLOPE = 2.0
"""Decrease of the `local` initial bias per e-fold of distance from the preferred neighbor. Attention scores start near
zero, so about e^-2 of the weight remains three word pieces away. Chosen on the tiny preset
(docs/evidence/results.md)."""


@torch.no_grad()
def initialize_relative_bias(table: nn.Embedding, config: EncoderConfig) -> None:
    """Fills the table [buckets, N] as set by `relative_bias_init`; a table on the meta device is left as it is."""
    if table.weight.is_meta:
        return
    if config.relative_bias_init == "t5":
        nn.init.normal_(table.weight, std=config.hidden_size**-0.5)
        return
    reach = config.relative_attention_max_distance
    distance = torch.arange(-reach, reach + 1)
    bucket = relative_bucket(distance, config.relative_attention_num_buckets, reach)
    for head in range(config.num_attention_heads):
        neighbor = 1 if head % 2 else -1
        falling = -LOCAL_BIAS_SLOPE * torch.log1p((distance - neighbor).abs().float())
        for index in bucket.unique():
            table.weight[index, head] = falling[bucket == index].mean()
