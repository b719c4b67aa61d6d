"""The softmax over the vocabulary, its draws and its gradient without the scores of all tokens at once, in Triton.

Scores h W^T + b are computed tile by tile, [128 rows, a block of 128 tokens], and never stored. Of each row and block
only sums are kept, from which follow the softmax's normalizer and the block of a draw; that block's scores are then
computed again. The backward stores the gradients of some thousand tokens' scores at a time, for cuBLAS's products with
h and W. The same input gives the same bits.

Shape letters: X any leading dimensions, R rows (their product), E embedding size, V vocabulary, N blocks per row,
S tokens per block, C tokens per chunk, T tiles of rows.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.model.vocabulary_kernels import peaks, slopes, weigh, weights_of_block

BLOCK = 128
"""Tokens per block, as in `pretrain/method/sampling.py`."""
ROWS = 128
"""Rows per tile."""
DEPTH = 64
"""Columns of h and W per product of tiles."""
CHUNK = 2**25
"""Gradients of scores in memory at once: 64 MB in half precision."""
WIDE = os.environ.get("TRITON_INTERPRET") == "1"
"""Converts operands to fp32 first: products of bf16 are wrong in Triton's interpreter (3.6 and 3.9)."""


def softmax(hidden_XE: Tensor, table_VE: Tensor, bias_V: Tensor | None, entropies: bool) -> "Softmax | None":
    """Computes `ops.softmax`, in half precision only.

    Tensor cores have no exact products in fp32; without them, the kernels would be slow.
    """
    if hidden_XE.dtype not in (torch.float16, torch.bfloat16):
        return None
    return Softmax(hidden_XE, table_VE, bias_V, entropies)


class Weights(NamedTuple):
    """Unnormalized probabilities of all tokens, of which a draw needs the sums of the blocks and then one block."""

    sum_XN: Tensor
    largest_X: Tensor
    entropy_X: Tensor | None
    size: int
    """Number of tokens."""
    block: Callable[[Tensor], Tensor]
    """Returns the weights in one block of each row, [X, S], from its number, [X, 1]; 0 beyond the last token."""


class Softmax:
    """The softmax of h W^T + b over the vocabulary; only `log_p` is differentiable.

    `top_X` is the most likely token. The attributes of `Weights` are those of p itself.
    """

    def __init__(self, hidden_XE: Tensor, table_VE: Tensor, bias_V: Tensor | None, entropies: bool) -> None:
        self._bias_V = table_VE.new_zeros(len(table_VE), dtype=torch.float32) if bias_V is None else bias_V
        self._hidden_XE, self._table_VE = hidden_XE, table_VE
        hidden_RE = flat(hidden_XE)
        parts = hidden_RE, table_VE.detach(), self._bias_V.detach()
        rows, tokens = len(hidden_RE), len(table_VE)
        shape = rows, triton.cdiv(tokens, BLOCK)
        peak_RN, sum_RN, spread_RN = torch.empty(3, *shape, device=hidden_RE.device)
        place_RN = torch.empty(shape, dtype=torch.int32, device=hidden_RE.device)
        where = (peak_RN, sum_RN, place_RN, spread_RN)
        peaks[tiles(*shape)](*parts, *where, rows, tokens, **sizes(hidden_RE), ENTROPY=entropies)
        peak_R, block_R = peak_RN.max(-1)
        below_RN = peak_RN - peak_R[:, None]
        share_RN = below_RN.exp()
        sum_RN *= share_RN
        total_R = sum_RN.sum(-1)
        place_R = place_RN.gather(-1, block_R[:, None]).squeeze(-1)
        self.size, self._leading = tokens, hidden_XE.shape[:-1]
        self._normalizer_R = peak_R + total_R.log()
        self.top_X = (block_R * BLOCK + place_R).clamp_(max=tokens - 1).view(self._leading)
        self.sum_XN = (sum_RN / total_R[:, None]).unflatten(0, self._leading)
        self.largest_X = total_R.reciprocal().view(self._leading)
        self.entropy_X = None
        if entropies:
            spread_R = (spread_RN * share_RN + sum_RN * below_RN).sum(-1)
            self.entropy_X = (total_R.log() - spread_R / total_R).view(self._leading)

    def log_p(self, ids_X: Tensor) -> Tensor:
        """Returns the log-probability of one token per row, [X]."""
        ids_R = ids_X.flatten()
        log_p_R: Tensor = _LogP.apply(
            self._hidden_XE.flatten(0, -2), self._table_VE, self._bias_V, self._normalizer_R, ids_R
        )
        return log_p_R.view(self._leading)

    def block(self, block_X1: Tensor) -> Tensor:
        """Computes `Weights.block` of p."""
        return self._weights(
            block_X1,
            other_RE=flat(self._hidden_XE),  # not read, nor are the bias and the original tokens
            bias_V=self._bias_V,
            original_X=block_X1,
            least=0.0,
            exponent=1.0,
            weighed=False,
        )

    @torch.no_grad()
    def weighed(
        self,
        projected_XE: Tensor,
        bias_V: Tensor | None,
        original_X: Tensor,
        least: float,
        exponent: float,
    ) -> Weights:
        """Returns p L_hat^exponent, as `sampling.hp_loss_weights` does: the estimate is from z = projected W^T + b."""
        bias_V = torch.zeros_like(self._bias_V) if bias_V is None else bias_V
        hidden_RE, other_RE = flat(self._hidden_XE), flat(projected_XE)
        rows, tokens = len(hidden_RE), len(self._table_VE)
        shape = rows, triton.cdiv(tokens, BLOCK)
        sum_RN, largest_RN, spread_RN = torch.empty(3, *shape, device=hidden_RE.device)
        weigh[tiles(*shape, ROWS // 2)](
            *(hidden_RE, other_RE, self._table_VE, self._bias_V, bias_V, self._normalizer_R, original_X.flatten()),
            *(sum_RN, largest_RN, spread_RN, rows, tokens, least),
            **sizes(hidden_RE, ROWS // 2),  # two tiles of scores at once: more would not fit the registers
            EXPONENT=exponent,
            ENTROPY=self.entropy_X is not None,
        )
        total_R, entropy_X = sum_RN.sum(-1), None
        if self.entropy_X is not None:
            entropy_X = (total_R.log() - spread_RN.sum(-1) / total_R).view(self._leading)
        block = partial(
            self._weights,
            other_RE=other_RE,
            bias_V=bias_V,
            original_X=original_X,
            least=least,
            exponent=exponent,
        )
        largest_X = largest_RN.amax(-1).view(self._leading)
        return Weights(sum_RN.unflatten(0, self._leading), largest_X, entropy_X, tokens, block)

    @torch.no_grad()
    def _weights(
        self,
        block_X1: Tensor,
        other_RE: Tensor,
        bias_V: Tensor,
        original_X: Tensor,
        least: float,
        exponent: float,
        weighed: bool = True,
    ) -> Tensor:
        hidden_RE = flat(self._hidden_XE)
        weight_RS = torch.empty(len(hidden_RE), BLOCK, device=hidden_RE.device)
        weights_of_block[(len(hidden_RE),)](
            *(hidden_RE, other_RE, self._table_VE, self._bias_V, bias_V, self._normalizer_R),
            *(original_X.flatten(), block_X1.flatten(), weight_RS, len(self._table_VE), least),
            E=hidden_RE.shape[-1],
            BLOCK=BLOCK,
            DEPTH=DEPTH,
            EXPONENT=exponent,
            WEIGHED=weighed,
        )
        return weight_RS.unflatten(0, self._leading)


class _LogP(torch.autograd.Function):
    """The log-probability of one token per row, [R]."""

    @staticmethod
    def forward(
        ctx: Any, hidden_RE: Tensor, table_VE: Tensor, bias_V: Tensor, normalizer_R: Tensor, ids_R: Tensor
    ) -> Tensor:
        ctx.save_for_backward(hidden_RE, table_VE, bias_V, normalizer_R, ids_R)
        score_R = (hidden_RE.float() * table_VE[ids_R].float()).sum(-1) + bias_V[ids_R]
        return (score_R - normalizer_R).clamp_(max=0)  # above 0 only by rounding

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_R: Tensor) -> tuple[Tensor | None, ...]:
        hidden_RE, table_VE, bias_V, normalizer_R, ids_R = ctx.saved_tensors
        needs_hidden, needs_table, needs_bias = ctx.needs_input_grad[:3]
        hidden_RE, gradient_R = hidden_RE.contiguous(), gradient_R.contiguous()
        rows, tokens = len(hidden_RE), len(table_VE)
        gradient_RE = torch.zeros(hidden_RE.shape, device=hidden_RE.device)
        gradient_VE, gradient_V = torch.empty_like(table_VE), torch.empty_like(bias_V)
        step = max(BLOCK, CHUNK // rows // BLOCK * BLOCK)
        for first in range(0, tokens, step):
            chunk = slice(first, min(first + step, tokens))
            width = chunk.stop - first
            grid = tiles(rows, triton.cdiv(width, BLOCK))
            slope_RC = hidden_RE.new_empty(rows, width)
            sum_TC = torch.empty(grid[0], width, device=hidden_RE.device)
            slopes[grid](
                *(hidden_RE, table_VE, bias_V, normalizer_R, ids_R, gradient_R, slope_RC, sum_TC),
                *(first, rows, tokens, width),
                **sizes(hidden_RE),
            )
            if needs_hidden:
                gradient_RE += slope_RC @ table_VE[chunk]
            if needs_table:
                gradient_VE[chunk] = slope_RC.T @ hidden_RE
            gradient_V[chunk] = sum_TC.sum(0)
        return (
            gradient_RE.to(hidden_RE.dtype) if needs_hidden else None,
            gradient_VE if needs_table else None,
            gradient_V if needs_bias else None,
            None,
            None,
        )


def flat(values_XE: Tensor) -> Tensor:
    """Returns the rows, [R, E], contiguous and without gradient."""
    return values_XE.detach().flatten(0, -2).contiguous()


def tiles(rows: int, blocks: int, per_tile: int = ROWS) -> tuple[int, int]:
    """Returns the grid of tiles; those that run together share a block of W."""
    return triton.cdiv(rows, per_tile), blocks


def sizes(hidden_RE: Tensor, per_tile: int = ROWS) -> dict[str, Any]:
    """Returns the constants of the kernels that compute tiles."""
    columns = {"E": hidden_RE.shape[-1], "DEPTH": DEPTH, "WIDE": WIDE}
    return {**columns, "ROWS": per_tile, "BLOCK": BLOCK, "num_warps": 8, "num_stages": 3}
