"""What the models are made of: operations in plain torch, and the layers that call them.

A machine may have faster forms: where the engine starts on a CPU, `cpu_ops.use()` puts its own in the place of these
functions, as a `cuda_ops` beside it could on a GPU. So models name them `ops.linear` and import none by itself, and
every dense layer, LayerNorm, embedding and dropout is a layer of `ops`.

Shape letters: X any leading dimensions, I inputs, O outputs, H hidden size, V rows of a table, E embedding size;
B batch, N heads, L length, D head size.
"""

import torch.nn.functional as F
from torch import Tensor, nn


def attend(query_BNLD: Tensor, key_BNLD: Tensor, value_BNLD: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """softmax(Q K^T / sqrt(D) + bias) V with dropout on the probabilities; `bias` broadcasts to [B, N, L, L]."""
    return F.scaled_dot_product_attention(query_BNLD, key_BNLD, value_BNLD, attn_mask=bias, dropout_p=dropout)


def dropout(values: Tensor, p: float) -> Tensor:
    """Zeroes values with probability `p` and scales the others by 1 / (1 - p)."""
    return F.dropout(values, p)


def layer_norm(input_XH: Tensor, weight_H: Tensor, bias_H: Tensor, eps: float) -> Tensor:
    return F.layer_norm(input_XH, weight_H.shape, weight_H, bias_H, eps)


def linear(input_XI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Returns x W^T + b, [X, O]."""
    return F.linear(input_XI, weight_OI, bias_O)


def look_up(ids_X: Tensor, table_VE: Tensor) -> Tensor:
    """The rows of a table that are asked for, [X, E]."""
    return F.embedding(ids_X, table_VE)


class Dropout(nn.Dropout):
    """`nn.Dropout` by `dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training else input


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last dimension, with weight and bias, by `layer_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.weight, self.bias, self.eps)


class Linear(nn.Linear):
    """`nn.Linear` by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class Embedding(nn.Embedding):
    """`nn.Embedding` by `look_up`."""

    def forward(self, input: Tensor) -> Tensor:
        return look_up(input, self.weight)
