"""A modern encoder: rotary positions, attention to all tokens in every third layer and to a window in the others, gated
feed-forward layers, LayerNorm before each part, no biases and no segments.

The network is ModernBERT's (Warner et al. 2024, arXiv 2412.13663); a layer's parameters have its names. An encoder
narrower than the word embeddings has two more linear maps, which an export multiplies into its tables: from word
embeddings to hidden states before the first LayerNorm, and from the output of a vocabulary head to word embeddings.

Shape letters: B batch, L length, T positions computed, E embedding size, H hidden size, N heads, D head size,
F feed-forward size, X any leading dimensions.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.model import ops
from pretrain.model.encoder import Encoder, Stack, TiedEmbedding, TokenEmbeddings, TokenPacking, initialize_matrix
from pretrain.model.gdes import Disentangled
from pretrain.model.heads import full_precision
from pretrain.model.sizes import EncoderSizes


@dataclass(frozen=True, kw_only=True)
class ModernConfig(EncoderSizes):
    """Sizes and switches of one encoder; `intermediate_size` is the width after the gate.

    ModernBERT's only dropout in pre-training is that of hidden states, after attention.
    """

    attention_probs_dropout_prob: float = 0.0
    layer_norm_eps: float = 1e-5
    global_every: int = 3
    """Layers 0, n, 2n, ... attend to all tokens, the others to a window."""
    window: int = 128
    """Width of the window: half of it on each side of a token."""
    global_theta: float = 10_000.0
    """Base theta of the rotary frequencies theta^(-2j/D), in layers that attend to all tokens."""
    local_theta: float = 10_000.0
    """The same, in layers with a window."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size // self.num_attention_heads % 2:
            raise ValueError(
                f"hidden_size: got {self.hidden_size} with {self.num_attention_heads} heads, expected an even size of"
                " each head, for rotary positions"
            )

    def layer_flops(self, length: int) -> float:
        hidden, layers = self.hidden_size, self.num_hidden_layers
        wide = len(range(0, layers, self.global_every)) / layers
        seen = wide * length + (1 - wide) * min(length, self.window + 1)
        return 2.0 * (4 * hidden * hidden + 3 * hidden * self.intermediate_size + 2 * seen * hidden)

    @property
    def layer_elements(self) -> int:
        """Counts the layer's input; its LayerNorms' outputs; query, key and value, two of them rotated; attention's
        output; the residual after it; both halves of the feed-forward layer, GELU and product.
        """
        return 10 * self.hidden_size + 4 * self.intermediate_size


class WordEmbeddings(TokenEmbeddings):
    """The table of word embeddings, shared by the encoders: ids [B, L] -> [B, L, E]."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.word_embeddings = TiedEmbedding(config.vocab_size, config.embedding_size)
        initialize_matrix(self.word_embeddings, config.initializer_range)

    def forward(self, input_ids_BL: Tensor) -> Tensor:
        return self.word_embeddings(input_ids_BL)


class DisentangledWords(Disentangled, WordEmbeddings):
    """A discriminator's word embeddings under gradient-disentangled sharing: E_D = sg(E_G) + Delta."""


class ModernEncoder(Encoder):
    """Word embeddings, their projection when sizes differ, LayerNorm, and the layers; `ModernBertModel`.

    Segments have no embeddings: [SEP] alone tells them apart.
    """

    config: ModernConfig

    def __init__(self, config: ModernConfig, embeddings: WordEmbeddings | None = None) -> None:
        super().__init__()
        self.config = config
        self.embeddings = embeddings if embeddings is not None else WordEmbeddings(config)
        self.embeddings_project = projection(config.embedding_size, config.hidden_size)
        self.norm = norm(config)
        self.encoder = ModernStack(config)

    def forward(self, input_ids_BL: Tensor, attention_mask_BL: Tensor, token_type_ids_BL: Tensor) -> Tensor:
        hidden_BLH = self.embeddings_project(self.embeddings(input_ids_BL))
        return self.encoder(self.norm(hidden_BLH), attention_mask_BL)


class ModernStack(Stack):
    """The layers and the LayerNorm that follows them."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(ModernLayer(config, number) for number in range(config.num_hidden_layers))
        self.final_norm = norm(config)

    def forward(self, hidden_BLH: Tensor, attention_mask_BL: Tensor) -> Tensor:
        config, (_, length, width) = self.config, hidden_BLH.shape
        visible_BL, head_size = attention_mask_BL.bool(), width // config.num_attention_heads
        packing = self.packing(visible_BL)
        everywhere, nearby = (
            (
                ops.attention_bias(visible_BL, None, radius, head_size, hidden_BLH.dtype),
                rotation(length, head_size, theta, hidden_BLH.device),
            )
            for radius, theta in ((length, config.global_theta), (config.window // 2, config.local_theta))
        )
        hidden_TH = packing.pack(hidden_BLH)
        for number, layer in enumerate(self.layer):
            seen = nearby if number % config.global_every else everywhere
            hidden_TH = self.run(layer, hidden_TH, packing, *seen)
        return packing.pad(self.final_norm(hidden_TH))


class ModernLayer(nn.Module):
    """x += Wo attention(LayerNorm(x)), then x += Wo (GELU(a) g) with [a, g] = Wi LayerNorm(x).

    The first layer has no first LayerNorm, because the embeddings end with one.
    """

    def __init__(self, config: ModernConfig, number: int) -> None:
        super().__init__()
        H, F, out = config.hidden_size, config.intermediate_size, output_deviation(config)
        self.heads, self.attention_dropout = config.num_attention_heads, config.attention_probs_dropout_prob
        self.attn_norm = norm(config) if number else nn.Identity()
        self.attn = nn.ModuleDict({"Wqkv": matrix(H, 3 * H, config.initializer_range), "Wo": matrix(H, H, out)})
        self.dropout = config.hidden_dropout_prob
        self.mlp_norm = ops.ResidualLayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=False)
        self.mlp = nn.ModuleDict({"Wi": matrix(H, 2 * F, config.initializer_range), "Wo": matrix(F, H, out)})

    def forward(self, hidden_TH: Tensor, packing: TokenPacking, bias: ops.Bias, rotation_2LD: Tensor) -> Tensor:
        projected_BLX = packing.pad(self.attn["Wqkv"](self.attn_norm(hidden_TH)))
        query_BNLD, key_BNLD, value_BNLD = ops.rotary_heads(projected_BLX, rotation_2LD, self.heads)
        context_BNLD = bias.attend(query_BNLD, key_BNLD, value_BNLD, self.attention_dropout if self.training else 0.0)
        context_TH = packing.pack(context_BNLD.transpose(1, 2).flatten(2))
        hidden_TH, normal_TH = self.mlp_norm(self.attn["Wo"](context_TH), hidden_TH, self.dropout)
        return hidden_TH + self.mlp["Wo"](ops.gated_gelu(self.mlp["Wi"](normal_TH)))


def rotation(length: int, head_size: int, theta: float, device: torch.device) -> Tensor:
    """Returns cosine and sine of each position's angles p theta^(-2j/D), for j below D/2 and again, [2, L, D]."""
    frequency = theta ** -(torch.arange(0, head_size, 2, device=device) / head_size)
    angles_LD = torch.outer(torch.arange(length, device=device), frequency).repeat(1, 2)
    return torch.stack((angles_LD.cos(), angles_LD.sin()))


class ModernTransform(nn.Module):
    """LayerNorm(GELU(dense(h))), projected when sizes differ, [X, H] -> [X, E]: the h of softmax(e(x)·h)."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.dense = matrix(config.hidden_size, config.hidden_size, output_deviation(config))
        self.LayerNorm = norm(config)
        self.embeddings_project = projection(config.hidden_size, config.embedding_size)

    def forward(self, hidden_XH: Tensor) -> Tensor:
        return self.embeddings_project(self.LayerNorm(F.gelu(self.dense(hidden_XH))))


class ModernDiscriminatorHead(nn.Module):
    """w·LayerNorm(GELU(dense(h))) + b, [X, H] -> logit d [X] in fp32; d > 0 means "replaced".

    The head of `ModernBertForTokenClassification` with one label.
    """

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.dense = matrix(config.hidden_size, config.hidden_size, output_deviation(config))
        self.LayerNorm = norm(config)
        self.dense_prediction = ops.Linear(config.hidden_size, 1)
        initialize_matrix(self.dense_prediction, config.hidden_size**-0.5)

    def forward(self, hidden_XH: Tensor) -> Tensor:
        return full_precision(self.dense_prediction(self.LayerNorm(F.gelu(self.dense(hidden_XH)))).squeeze(-1))


def output_deviation(config: ModernConfig) -> float:
    """Returns the deviation of initial matrices that write to the residual stream (ModernBERT)."""
    return config.initializer_range / math.sqrt(2 * config.num_hidden_layers)


def matrix(inputs: int, outputs: int, deviation: float) -> ops.Linear:
    """Returns a dense layer without bias."""
    layer = ops.Linear(inputs, outputs, bias=False)
    initialize_matrix(layer, deviation)
    return layer


def projection(inputs: int, outputs: int) -> nn.Module:
    """Returns a projection that preserves the scale of its input, if the sizes differ."""
    return nn.Identity() if inputs == outputs else matrix(inputs, outputs, inputs**-0.5)


def norm(config: ModernConfig) -> ops.LayerNorm:
    """Returns a LayerNorm without bias."""
    return ops.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=False)
