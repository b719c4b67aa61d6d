"""The operations that models are built from, in plain torch, and the layers that call them.

Faster versions can replace these functions: when the engine starts, it calls `cpu_ops.use()` or `cuda_ops.use()`. So
models must call `ops.linear` through the module, never import a function by name, and use the dense, LayerNorm,
embedding and dropout layers of `ops`.

Shape letters: X any leading dimensions, I inputs, O outputs, H hidden size, V rows of a table, E embedding size;
B batch, N heads, L length, D head size, T tokens.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.model.distribution import Distribution


class Bias(NamedTuple):
    """The relative position and padding mask that attention adds to its scores; `TableBias` is Triton's form of it."""

    added_BNLL: Tensor
    """Both, [B, N, L, L], or only the mask, [B, 1, L, L] or [B, 1, 1, L]."""

    def attend(self, query_BNLD: Tensor, key_BNLD: Tensor, value_BNLD: Tensor, dropout: float) -> Tensor:
        """Returns softmax(Q K^T / sqrt(D) + bias) V, dropout on the probabilities."""
        return attend(query_BNLD, key_BNLD, value_BNLD, self.added_BNLL, dropout)


def attention_bias(
    visible_BL: Tensor,
    relative: Callable[[Tensor], Tensor] | None,
    max_distance: int,
    head_size: int,
    dtype: torch.dtype,
) -> Bias:
    """Returns the bias of attention: relative position and padding mask, [B, N, L, L], or only the mask.

    `relative` maps distances [X] (key position minus query position) to biases [X, N], constant from `max_distance` on
    in each direction. Without it, tokens see those at most `max_distance` away: the mask is [B, 1, L, L] or, where all
    are that near, [B, 1, 1, L]. `visible_BL` is false at padding, which follows the word pieces.
    """
    lowest = torch.finfo(dtype).min
    seen, length = visible_BL[:, None, None, :], visible_BL.shape[1]
    position_L = torch.arange(length, device=visible_BL.device)
    if relative is not None:
        bias_NLL = relative(position_L[None, :] - position_L[:, None]).permute(2, 0, 1)
        return Bias(bias_NLL.unsqueeze(0).to(dtype).masked_fill(~seen, lowest))
    if max_distance < length - 1:
        seen = seen & ((position_L[None, :] - position_L[:, None]).abs() <= max_distance)
    return Bias(torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, lowest))


def attend(query_BNLD: Tensor, key_BNLD: Tensor, value_BNLD: Tensor, added_BNLL: Tensor, dropout: float) -> Tensor:
    """Computes `Bias.attend`."""
    return F.scaled_dot_product_attention(query_BNLD, key_BNLD, value_BNLD, attn_mask=added_BNLL, dropout_p=dropout)


def dropout(values: Tensor, p: float) -> Tensor:
    """Sets values to zero with probability `p` and scales the others by 1 / (1 - p)."""
    return F.dropout(values, p)


def gated_gelu(values_XF: Tensor) -> Tensor:
    """Returns GELU(a) g, [X, F/2], with a the first half of the values and g the second."""
    input_XF, gate_XF = values_XF.chunk(2, dim=-1)
    return F.gelu(input_XF) * gate_XF


def gelu_linear(input_XI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """Returns GELU(x W^T + b) with GELU in its exact (erf) form, [X, O]."""
    return F.gelu(linear(input_XI, weight_OI, bias_O))


def layer_norm(input_XH: Tensor, weight_H: Tensor, bias_H: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(input_XH, weight_H.shape, weight_H, bias_H, eps)


def linear(input_XI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Returns x W^T + b, [X, O]."""
    return F.linear(input_XI, weight_OI, bias_O)


def linears(input_XI: Tensor, layers: Sequence["Linear"]) -> tuple[Tensor, ...]:
    """Returns the outputs of dense layers of one size that share their input, each [X, O]."""
    return tuple(layer(input_XI) for layer in layers)


def look_up(ids_X: Tensor, table_VE: Tensor) -> Tensor:
    """Returns the rows of the table with these indices, [X, E]."""
    return F.embedding(ids_X, table_VE)


def norm_residual(
    values_XH: Tensor, residual_XH: Tensor, p: float, weight_H: Tensor, bias_H: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Returns residual + dropout(values), and its LayerNorm, each [X, H]."""
    total_XH = residual_XH + (dropout(values_XH, p) if p else values_XH)
    return total_XH, layer_norm(total_XH, weight_H, bias_H, eps)


def residual_output(
    input_XI: Tensor, dense: "Linear", residual_XH: Tensor, p: float, norm: "ResidualLayerNorm"
) -> Tensor:
    """Returns LayerNorm(residual + dropout(dense(x))), [X, H]."""
    return norm(dense(input_XI), residual_XH, p)[1]


def rotary_heads(values_BLX: Tensor, rotation_2LD: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns query, key and value, side by side in X = 3 N D, each [B, N, L, D]; query and key rotated.

    Each pair (j, j + D/2) turns by the angle of its position, at least in fp32 (RoFormer, Su et al. 2021): the product
    of a query and a key then depends on the distance between their positions, not on these. `rotation_2LD`: cosines and
    sines.
    """
    query_BLND, key_BLND, value_BLND = values_BLX.unflatten(2, (3, heads, -1)).unbind(2)
    cos_LND, sin_LND = rotation_2LD.unsqueeze(2)

    def rotated(part_BLND: Tensor) -> Tensor:
        first, second = part_BLND.chunk(2, dim=-1)
        return (part_BLND * cos_LND + torch.cat((-second, first), -1) * sin_LND).to(part_BLND.dtype).transpose(1, 2)

    return rotated(query_BLND), rotated(key_BLND), value_BLND.transpose(1, 2)


def tokens_of(visible_BL: Tensor) -> Tensor | None:
    """Returns the indices [T] of the non-padding positions, so that layers can skip padding.

    Here `None`: nothing is skipped, so shapes do not depend on the data.
    """
    return None


def softmax(hidden_XE: Tensor, table_VE: Tensor, bias_V: Tensor | None) -> Distribution | None:
    """Returns the softmax of h W^T + b without all scores in memory; `None` here, so the caller computes the scores."""
    return None


class Dropout(nn.Dropout):
    """`nn.Dropout` that calls `dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training else input


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last dimension, with a weight, that calls `layer_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.weight, self.bias, self.eps)


class ResidualLayerNorm(nn.LayerNorm):
    """The parameters of a LayerNorm, used to call `norm_residual`."""

    def forward(  # type: ignore[override]
        self, values_XH: Tensor, residual_XH: Tensor, p: float
    ) -> tuple[Tensor, Tensor]:
        return norm_residual(values_XH, residual_XH, p if self.training else 0.0, self.weight, self.bias, self.eps)


class Linear(nn.Linear):
    """`nn.Linear` that calls `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class GeluLinear(nn.Linear):
    """`nn.Linear` with bias, followed by GELU, that calls `gelu_linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return gelu_linear(input, self.weight, self.bias)


class Embedding(nn.Embedding):
    """`nn.Embedding` that calls `look_up`."""

    def forward(self, input: Tensor) -> Tensor:
        return look_up(input, self.weight)
