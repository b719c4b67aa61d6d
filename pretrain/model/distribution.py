"""Distributions over the vocabulary at the masked positions: one interface with two forms.

`Dense` holds every token's weight; it is what the paper's formulas say, and what a CPU computes. The other form, in
`triton_vocabulary`, never holds all scores at once; `ops.softmax` chooses it where a GPU can.

Everything runs in fp32 or wider. Only `log_p` has a gradient: the paper does not differentiate through sampling
(section 3.2). Weights are unnormalized probabilities; the largest of each row must be a normal number (not subnormal).

Shape letters: X any leading dimensions, V vocabulary, R rows, N blocks per row, S tokens per block, E embedding size.
Tensors [X, V] are the largest of a step, so each is made once and updated in place.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LEAST_LOSS = 1e-30
"""Lower bound on L_hat, chosen so that its product with the largest p_G (at least 1/V) is a normal fp32 number. It
changes p_S only if the estimated loss of every token that p_G finds likely is below it."""
ENTROPY_ROWS = 64
"""Rows per entropy computation: 8 MB of fp32 with 30,522 tokens; a whole micro-batch would take hundreds of MB."""
BLOCK = 128  # near the square root of 30,522 tokens; sizes from 64 to 512 take the same time


class Scores(Protocol):
    """Scores e(x)·h + b of every token x, computed on demand; they share the embeddings e of p_G's scores."""

    @property
    def hidden_XE(self) -> Tensor: ...

    @property
    def bias_V(self) -> Tensor | None: ...

    def all(self) -> Tensor:
        """Returns the scores of every token, [X, V]."""


class Distribution(ABC):
    """A distribution over the vocabulary for each position [X]; operations that a subclass lacks convert it to `Dense`.

    Attributes:
        sum_XN: sums of the weights by block.
        size: number of tokens.
    """

    sum_XN: Tensor
    size: int

    @abstractmethod
    def dense(self) -> "Dense":
        """Returns the distribution with every token's weight."""

    @abstractmethod
    def block(self, block_X1: Tensor) -> Tensor:
        """Returns the weights in one block of each row, [X, S], from its number, [X, 1]; 0 beyond the last token."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Returns the entropy in nats, [X]; it costs a pass over the vocabulary."""

    @property
    @abstractmethod
    def log_largest_X(self) -> Tensor:
        """The log-probability of the most likely token, without gradient."""

    @property
    def top_X(self) -> Tensor:
        """The most likely token."""
        return self.dense().top_X

    def log_p(self, ids_X: Tensor) -> Tensor:
        """Returns the log-probability of one token per row, [X]; differentiable if the distribution has scores."""
        return self.dense().log_p(ids_X)

    def log_at(self, ids_X: Tensor) -> Tensor:
        """Returns `log_p` without gradient, [X]; `Dense` clamps probabilities to the smallest normal number."""
        return self.log_p(ids_X).detach()

    def detach(self) -> "Distribution":
        """Returns the distribution without its scores, whose memory may then be freed."""
        return self

    @torch.no_grad()
    def draw(self, uniform_X: Tensor) -> tuple[Tensor, Tensor]:
        """Draws a token per row by inverse CDF; returns the tokens and their log-probabilities, both [X].

        If a row's weights are not finite, or their sum is not positive, the token drawn is arbitrary but valid, and its
        log-probability is NaN: the error shows in loss or metrics, not as an index out of range.
        """
        tokens_X, total_X, weight_X = draw_in_blocks(self.sum_XN, self.block, self.size, uniform_X)
        total_X = total_X.where(total_X > 0, torch.nan)
        return tokens_X, (weight_X / (total_X + 0 * total_X)).log()  # infinity becomes NaN

    @torch.no_grad()
    def tempered(self, temperature: float) -> "Distribution":
        """Returns the distribution proportional to p^(1/T), each row's largest weight scaled to 1."""
        if temperature == 1:
            return self
        weights_XV = self.dense().weights_XV
        return Dense((weights_XV / weights_XV.amax(-1, keepdim=True)).pow_(1 / temperature))

    @torch.no_grad()
    def without(self, ids_X: Tensor) -> "Distribution":
        """Returns the distribution without one token per row (google-research/electra `disallow_correct`).

        If all other tokens had weight zero, they become equally likely.
        """
        weights_XV = self.dense().weights_XV
        least = torch.finfo(weights_XV.dtype).tiny
        return Dense(weights_XV.clamp(min=least).scatter_(-1, ids_X[..., None], 0.0))

    @torch.no_grad()
    def mixed(self, other: "Distribution", share: float) -> "Distribution":
        """Returns the distribution (1 - share) p + share other; `other` must be a softmax."""
        weights_XV = self.dense().weights_XV
        p_XV = weights_XV / weights_XV.sum(-1, keepdim=True)
        return Dense(p_XV.lerp(other.dense().weights_XV, share), normalized=True)

    @torch.no_grad()
    def times_estimated_loss(
        self, z: Scores, original_X: Tensor, exponent: float = 1.0, least: float = LEAST_LOSS
    ) -> "Distribution":
        """Returns the distribution proportional to p L_hat^exponent: HP_Loss's p_S (see `hp_loss_weights`).

        It is computed here, not with the paper's other formulas, because on a GPU one kernel reads p, z and L_hat.
        """
        return Dense(hp_loss_weights(self.dense().weights_XV, z.all(), original_X, exponent, least))


class Dense(Distribution):
    """A distribution by the weight of every token, [X, V].

    Attributes:
        weights_XV: the weights, without gradient.
        normalized: true if the weights of a row sum to 1, but for rounding.
    """

    def __init__(self, weights_XV: Tensor, normalized: bool = False, scores_XV: Tensor | None = None) -> None:
        self.weights_XV, self.normalized, self._scores_XV = weights_XV, normalized, scores_XV
        self.size = weights_XV.shape[-1]

    @classmethod
    def softmax(cls, scores_XV: Tensor) -> "Dense":
        """Returns the softmax of the scores, through which `log_p` has its gradient."""
        return cls(scores_XV.detach().softmax(-1), True, scores_XV)

    def dense(self) -> "Dense":
        return self

    @cached_property
    def top_X(self) -> Tensor:
        return largest(self.weights_XV if self._scores_XV is None else self._scores_XV)

    @cached_property
    def sum_XN(self) -> Tensor:  # type: ignore[override]  # mypy takes a cached property for one that cannot be set
        return _by_block(torch.sum, self.weights_XV)

    @cached_property
    def total_X(self) -> Tensor:
        """Sum of each row's weights; NaN if it is infinite."""
        total_X = _cumulative_sum(self.sum_XN)[..., -1]
        return total_X + 0 * total_X

    def block(self, block_X1: Tensor) -> Tensor:
        return _block(self.weights_XV, block_X1, fill=0.0)

    @property
    def log_largest_X(self) -> Tensor:
        return self.log_at(self.top_X)

    def log_p(self, ids_X: Tensor) -> Tensor:
        if self._scores_XV is None:
            return self.log_at(ids_X)
        return _LogProbability.apply(self._scores_XV, self.weights_XV, self.top_X, ids_X)

    def log_at(self, ids_X: Tensor) -> Tensor:
        weight_X = self.weights_XV.gather(-1, ids_X[..., None]).squeeze(-1)
        p_X = weight_X if self.normalized else weight_X / self.total_X
        return p_X.clamp(min=torch.finfo(p_X.dtype).tiny).log()

    def detach(self) -> "Dense":
        p = Dense(self.weights_XV, self.normalized)
        p.top_X = self.top_X
        return p

    @torch.no_grad()
    def entropy(self) -> Tensor:
        entropies = []
        for weights_RV in self.weights_XV.flatten(0, -2).split(ENTROPY_ROWS):
            p_RV = weights_RV / weights_RV.sum(-1, keepdim=True)
            entropies.append(-torch.xlogy(p_RV, p_RV).sum(-1))  # 0 log 0 is 0
        return torch.cat(entropies).view(self.weights_XV.shape[:-1])


@torch.no_grad()
def hp_loss_weights(
    p_G_XV: Tensor, z_XV: Tensor, original_X: Tensor, exponent: float = 1.0, least: float = LEAST_LOSS
) -> Tensor:
    """Returns HP_Loss's sampling weights p_G L_hat^exponent, [X, V], with L_hat at least `least`; `p_G` may be
    tempered. Overwrites `z`.

    With D_hat = sigmoid(z), L_hat is -log D_hat = softplus(-z) for the original token and -log(1 - D_hat) = softplus(z)
    for every other token (paper, equations of section 3.3).
    """
    original_X1 = original_X[..., None]
    of_original_X1 = F.softplus(-z_XV.gather(-1, original_X1))
    loss_XV = torch.ops.aten.softplus.out(z_XV, out=z_XV).scatter_(-1, original_X1, of_original_X1)
    loss_XV.clamp_(min=least)
    return (loss_XV if exponent == 1 else loss_XV.pow_(exponent)).mul_(p_G_XV)


class _LogProbability(torch.autograd.Function):
    """`logits.log_softmax(-1).gather(-1, ids)`, [X], with less memory: the backward makes one tensor [X, V], not three.

    `p` is the softmax of the logits, without gradient. The result is computed relative to `top`, the most likely token,
    since its probability cannot round to zero.
    """

    @staticmethod
    def forward(ctx: Any, logits_XV: Tensor, p_XV: Tensor, top_X: Tensor, ids_X: Tensor) -> Tensor:
        ctx.save_for_backward(p_XV, ids_X)
        top_X1, ids_X1 = top_X[..., None], ids_X[..., None]
        below_top_X1 = logits_XV.gather(-1, ids_X1) - logits_XV.gather(-1, top_X1)
        return (below_top_X1 + p_XV.gather(-1, top_X1).log()).squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_X: Tensor) -> tuple[Tensor, None, None, None]:
        """Returns (one_hot(ids) - p) times the incoming gradient."""
        p_XV, ids_X = ctx.saved_tensors
        gradient_X1 = gradient_X[..., None]
        with in_any_order():
            gradient_XV = (p_XV * -gradient_X1).scatter_add_(-1, ids_X[..., None], gradient_X1)
        return gradient_XV, None, None, None


@torch.no_grad()
def largest(values_XV: Tensor) -> Tensor:
    """Returns the index of each row's largest value, the first if there are several, [X]; 3 times as fast as `argmax`
    on a CPU.
    """
    block_X1 = _by_block(torch.amax, values_XV).argmax(-1, keepdim=True)
    place_X1 = _block(values_XV, block_X1, fill=-torch.inf).argmax(-1, keepdim=True)
    return (block_X1 * BLOCK + place_X1).squeeze(-1)


@torch.no_grad()
def draw_in_blocks(
    sum_XN: Tensor, block: Callable[[Tensor], Tensor], size: int, uniform_X: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws by inverse CDF from the sums of the blocks and `block`, which returns the weights of one block of each row,
    [X, S], from its number, [X, 1]; returns the tokens, the totals of the rows and the tokens' weights, each [X].

    A token is the first, of `size`, at which its row's cumulative sum exceeds `uniform` times the total. `uniform` is
    in [0, 1) with at most 24 bits, so the sought value stays below the total, and a token of weight zero, where the sum
    does not grow, is never drawn.
    """
    cdf_XN = _cumulative_sum(sum_XN)
    total_X1 = cdf_XN[..., -1:]
    sought_X1 = uniform_X[..., None] * total_X1
    block_X1 = torch.searchsorted(cdf_XN, sought_X1, right=True).clamp_(max=cdf_XN.shape[-1] - 1)
    sought_X1 = sought_X1 - F.pad(cdf_XN, (1, 0)).gather(-1, block_X1)
    weights_XS = block(block_X1)
    cdf_XS = _cumulative_sum(weights_XS)
    end_X1 = cdf_XS[..., -1:]  # the block's sum, with another rounding: the sought value must stay below it
    sought_X1 = sought_X1.minimum(end_X1.nextafter(torch.zeros_like(end_X1)))
    place_X1 = torch.searchsorted(cdf_XS, sought_X1, right=True)
    token_X1 = (block_X1 * BLOCK + place_X1).clamp_(max=size - 1)
    weight_X1 = weights_XS.gather(-1, place_X1.clamp(max=BLOCK - 1))
    return token_X1.squeeze(-1), total_X1.squeeze(-1), weight_X1.squeeze(-1)


def _cumulative_sum(values_XN: Tensor) -> Tensor:
    """Returns each row's cumulative sum, also under deterministic algorithms.

    Under them, PyTorch refuses every floating-point `cumsum` on a GPU, though it varies only where a single row takes
    several thread blocks (ATen/native/cuda/ScanUtils.cuh); a row here has a few hundred values.
    """
    with in_any_order():
        return values_XN.cumsum(-1)


@contextmanager
def in_any_order() -> Iterator[None]:
    """Allows nondeterministic algorithms, for sums that are the same in any order: of integers, or of one value each.

    A deterministic `scatter_add` takes a sort and thirty kernels on a GPU.
    """
    strict = torch.are_deterministic_algorithms_enabled()
    if strict:
        torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        if strict:
            torch.use_deterministic_algorithms(True)


def _by_block(reduce: Callable[..., Tensor], values_XV: Tensor) -> Tensor:
    """Applies `reduce` to each block of a row, [X, N]; the last block may be shorter."""
    whole = values_XV.shape[-1] // BLOCK
    reduced_XN = reduce(values_XV[..., : whole * BLOCK].unflatten(-1, (whole, BLOCK)), -1)
    rest_XS = values_XV[..., whole * BLOCK :]
    return torch.cat((reduced_XN, reduce(rest_XS, -1, keepdim=True)), -1) if rest_XS.shape[-1] else reduced_XN


def _block(values_XV: Tensor, block_X1: Tensor, fill: float) -> Tensor:
    """Returns one block of each row, [X, S], with `fill` beyond the end of the row."""
    ids_XS = block_X1 * BLOCK + torch.arange(BLOCK, device=block_X1.device)
    vocabulary = values_XV.shape[-1]
    return values_XV.gather(-1, ids_XS.clamp(max=vocabulary - 1)).masked_fill_(ids_XS >= vocabulary, fill)
