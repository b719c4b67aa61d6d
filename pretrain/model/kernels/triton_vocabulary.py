"""The softmax over the vocabulary, its draws and its gradient without the scores of all tokens at once, in Triton.

Scores h W^T + b are computed tile by tile, [128 rows, a block of 128 tokens], and never stored. Only sums are kept of
each row and block. They give the softmax's normalizer and the block of the drawn token, whose scores are then computed
again. The backward stores the gradients of some thousand tokens' scores at a time, for cuBLAS's products with h and W.
The same input gives the same bits.

Shape letters: X any leading dimensions, R rows (their product), E embedding size, V vocabulary, N blocks per row,
S tokens per block, C tokens per chunk, T tiles of rows.
"""

import os
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.model.distribution import BLOCK, LEAST_LOSS, Dense, Distribution, Scores
from pretrain.model.kernels.vocabulary_kernels import peaks, slopes, weigh, weights_of_block

ROWS = 128
"""Rows per tile."""
DEPTH = 64
"""Columns of h and W multiplied at a time."""
CHUNK = 2**25
"""Number of scores whose gradients are in memory at once: 64 MB in half precision."""
WIDE = os.environ.get("TRITON_INTERPRET") == "1"
"""Converts operands to fp32 first: products of bf16 are wrong in Triton's interpreter (3.6 and 3.9)."""


def softmax(hidden_XE: Tensor, table_VE: Tensor, bias_V: Tensor | None) -> "Softmax | None":
    """Computes `ops.softmax`, in half precision only.

    Tensor cores have no exact products in fp32; without them, the kernels would be slow.
    """
    return Softmax(hidden_XE, table_VE, bias_V) if hidden_XE.dtype in (torch.float16, torch.bfloat16) else None


class Softmax(Distribution):
    """The softmax of h W^T + b over the vocabulary; operations that need every weight make it dense."""

    def __init__(self, hidden_XE: Tensor, table_VE: Tensor, bias_V: Tensor | None) -> None:
        self._bias_V = table_VE.new_zeros(len(table_VE), dtype=torch.float32) if bias_V is None else bias_V
        self._hidden_XE, self._table_VE = hidden_XE, table_VE
        self.size, self._leading = len(table_VE), hidden_XE.shape[:-1]
        peak_RN, sum_RN, place_RN, _ = self._peaks(entropy=False)
        peak_R, block_R = peak_RN.max(-1)
        sum_RN *= (peak_RN - peak_R[:, None]).exp()
        total_R = sum_RN.sum(-1)
        place_R = place_RN.gather(-1, block_R[:, None]).squeeze(-1)
        self._normalizer_R = peak_R + total_R.log()
        self._top_X = (block_R * BLOCK + place_R).clamp_(max=self.size - 1).view(self._leading)
        self.sum_XN = (sum_RN / total_R[:, None]).unflatten(0, self._leading)
        self.largest_X = total_R.reciprocal().view(self._leading)

    def _peaks(self, entropy: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns for each row and block, [R, N]: the largest score, the sum of exponentials relative to it, the
        largest score's place, and the sum for the entropy (see `vocabulary_kernels.peaks`).
        """
        hidden_RE = as_rows(self._hidden_XE)
        shape = len(hidden_RE), triton.cdiv(self.size, BLOCK)
        peak_RN, sum_RN, spread_RN = torch.empty(3, *shape, device=hidden_RE.device)
        place_RN = torch.empty(shape, dtype=torch.int32, device=hidden_RE.device)
        peaks[tiles(*shape)](
            *(hidden_RE, self._table_VE.detach(), self._bias_V.detach(), peak_RN, sum_RN, place_RN, spread_RN),
            *(len(hidden_RE), self.size),
            **sizes(hidden_RE),
            ENTROPY=entropy,
        )
        return peak_RN, sum_RN, place_RN, spread_RN

    @property
    def top_X(self) -> Tensor:
        return self._top_X

    @property
    def log_largest_X(self) -> Tensor:
        return self.largest_X.log()

    def entropy(self) -> Tensor:
        peak_RN, sum_RN, _, spread_RN = self._peaks(entropy=True)
        below_RN = peak_RN - peak_RN.amax(-1, keepdim=True)
        share_RN = below_RN.exp()
        total_R = (sum_RN * share_RN).sum(-1)
        spread_R = (spread_RN * share_RN + sum_RN * share_RN * below_RN).sum(-1)
        return (total_R.log() - spread_R / total_R).view(self._leading)

    @torch.no_grad()
    def dense(self) -> Dense:
        return Dense.softmax(self._hidden_XE.float() @ self._table_VE.float().T + self._bias_V)

    def log_p(self, ids_X: Tensor) -> Tensor:
        """Returns the log-probability of one token per row, [X]."""
        inputs = self._hidden_XE.flatten(0, -2), self._table_VE, self._bias_V, self._normalizer_R, ids_X.flatten()
        return _LogP.apply(*inputs).view(self._leading)

    def block(self, block_X1: Tensor) -> Tensor:
        return self.weights_of_block(
            block_X1,
            other_RE=as_rows(self._hidden_XE),  # not read, nor are the bias and the original tokens
            bias_V=self._bias_V,
            original_X=block_X1,
            least=0.0,
            exponent=1.0,
            weighted=False,
        )

    def times_estimated_loss(
        self, z: Scores, original_X: Tensor, exponent: float = 1.0, least: float = LEAST_LOSS
    ) -> Distribution:
        return _Weighted(self, z, original_X, exponent, least)

    @torch.no_grad()
    def weights_of_block(
        self,
        block_X1: Tensor,
        other_RE: Tensor,
        bias_V: Tensor,
        original_X: Tensor,
        least: float,
        exponent: float,
        weighted: bool = True,
    ) -> Tensor:
        hidden_RE = as_rows(self._hidden_XE)
        weight_RS = torch.empty(len(hidden_RE), BLOCK, device=hidden_RE.device)
        weights_of_block[(len(hidden_RE),)](
            *(hidden_RE, other_RE, self._table_VE, self._bias_V, bias_V, self._normalizer_R),
            *(original_X.flatten(), block_X1.flatten(), weight_RS, len(self._table_VE), least),
            E=hidden_RE.shape[-1],
            BLOCK=BLOCK,
            DEPTH=DEPTH,
            EXPONENT=exponent,
            WEIGHTED=weighted,
        )
        return weight_RS.unflatten(0, self._leading)


class _Weighted(Distribution):
    """The distribution proportional to p L_hat^exponent (`hp_loss_weights`), with L_hat from z, whose table is p's."""

    @torch.no_grad()
    def __init__(self, p: Softmax, z: Scores, original_X: Tensor, exponent: float, least: float) -> None:
        self._p, self._z, self._original_X, self._exponent, self._least = p, z, original_X, exponent, least
        self._bias_V = torch.zeros_like(p._bias_V) if z.bias_V is None else z.bias_V
        self.size = p.size
        sum_RN, largest_RN, _ = self._sums(entropy=False)
        self.sum_XN = sum_RN.unflatten(0, p._leading)
        self.largest_X = largest_RN.amax(-1).view(p._leading)

    def _sums(self, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Returns for each row and block, [R, N]: the sum of the weights w, the largest w, and the sum of w log w."""
        hidden_RE, other_RE = as_rows(self._p._hidden_XE), as_rows(self._z.hidden_XE)
        shape = len(hidden_RE), triton.cdiv(self.size, BLOCK)
        sum_RN, largest_RN, spread_RN = torch.empty(3, *shape, device=hidden_RE.device)
        weigh[tiles(*shape, ROWS // 2)](
            *(hidden_RE, other_RE, self._p._table_VE, self._p._bias_V, self._bias_V, self._p._normalizer_R),
            *(self._original_X.flatten(), sum_RN, largest_RN, spread_RN, len(hidden_RE), self.size, self._least),
            **sizes(hidden_RE, ROWS // 2),  # two tiles of scores at once: more would not fit the registers
            EXPONENT=self._exponent,
            ENTROPY=entropy,
        )
        return sum_RN, largest_RN, spread_RN

    @property
    def log_largest_X(self) -> Tensor:
        return (self.largest_X / self.sum_XN.sum(-1)).log()

    def block(self, block_X1: Tensor) -> Tensor:
        return self._p.weights_of_block(
            block_X1, as_rows(self._z.hidden_XE), self._bias_V, self._original_X, self._least, self._exponent
        )

    @torch.no_grad()
    def entropy(self) -> Tensor:
        sum_RN, _, spread_RN = self._sums(entropy=True)
        total_R = sum_RN.sum(-1)
        return (total_R.log() - spread_RN.sum(-1) / total_R).view(self._p._leading)

    def dense(self) -> Dense:
        return self._p.dense().times_estimated_loss(self._z, self._original_X, self._exponent, self._least).dense()


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


def as_rows(values_XE: Tensor) -> Tensor:
    """Returns the rows, [R, E], contiguous and without gradient."""
    return values_XE.detach().flatten(0, -2).contiguous()


def tiles(rows: int, blocks: int, per_tile: int = ROWS) -> tuple[int, int]:
    """Returns the kernel grid, [tiles of rows, blocks]; tiles that run together share a block of W."""
    return triton.cdiv(rows, per_tile), blocks


def sizes(hidden_RE: Tensor, per_tile: int = ROWS) -> dict[str, Any]:
    """Returns the constants of the kernels that compute tiles."""
    columns = {"E": hidden_RE.shape[-1], "DEPTH": DEPTH, "WIDE": WIDE}
    return {**columns, "ROWS": per_tile, "BLOCK": BLOCK, "num_warps": 8, "num_stages": 3}
