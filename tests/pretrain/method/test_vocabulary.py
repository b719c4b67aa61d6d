"""Claims about rows searched by blocks: the same as by the whole row."""

import math

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from pretrain.method.vocabulary import BLOCK, inverse_cdf, largest

SEEDS = (0, 1, 2)
LENGTHS = (1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 17)


def uniforms(number: int, seed: int) -> Tensor:
    """Of 24 bits, the lowest set, as training's; the least and the greatest among them."""
    random = torch.Generator().manual_seed(seed)
    bits = torch.randint(2**23, (number,), generator=random).mul(2).add(1)
    bits[0], bits[-1] = 1, 2**24 - 1
    return bits.float() / 2**24


@pytest.mark.parametrize("length", LENGTHS)
def test_the_largest_is_argmaxs_and_of_equal_ones_the_first(length: int) -> None:
    random = torch.Generator().manual_seed(length)
    values = torch.randn(2, 30, length, generator=random)
    coarse = values.mul(2).round()  # many equal ones
    assert torch.equal(largest(values), values.argmax(-1))
    assert torch.equal(largest(coarse), coarse.argmax(-1))
    assert not largest(torch.full((3, length), -math.inf)).any()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_token_is_that_of_the_exact_cdf_but_for_its_rounding(seed: int, length: int) -> None:
    """No further from the uniform than a few roundings of fp32 from where float64 sees the token's share."""
    weights = torch.randn(2000, length, generator=torch.Generator().manual_seed(seed)).mul(3).exp()
    uniform = uniforms(2000, seed)
    token, total = inverse_cdf(weights, uniform)
    share = weights.double() / weights.double().sum(-1, keepdim=True)
    end = share.cumsum(-1).gather(-1, token[:, None]).squeeze(-1)
    start = end - share.gather(-1, token[:, None]).squeeze(-1)
    assert torch.maximum(start - uniform, uniform - end).max() < 1e-6
    assert torch.allclose(total.double(), weights.double().sum(-1), rtol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_found_frequencies_follow_the_weights(seed: int) -> None:
    length, draws = 2 * BLOCK + 9, 400_000
    weights = torch.rand(length, generator=torch.Generator().manual_seed(seed)) + 0.1
    token, _ = inverse_cdf(weights.expand(draws, length), uniforms(draws, seed))
    counts = torch.bincount(token, minlength=length).numpy()
    assert chisquare(counts, (weights.double() / weights.double().sum() * draws).numpy()).pvalue > 1e-4


@pytest.mark.parametrize("scale", [1e-37, 1.0, 1e37])
@pytest.mark.parametrize("only", [(0,), (BLOCK,), (3, BLOCK - 1, 2 * BLOCK), (3 * BLOCK + 4,)])
def test_a_token_of_weight_zero_is_never_found_even_at_the_ends_of_a_block(only: tuple[int, ...], scale: float) -> None:
    weights = torch.zeros(3 * BLOCK + 5)
    weights[list(only)] = torch.rand(len(only), generator=torch.Generator().manual_seed(1)) * scale
    token, _ = inverse_cdf(weights.expand(50_000, -1), uniforms(50_000, 0))
    assert set(token.tolist()) == set(only)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_rounding_of_a_block_leads_past_its_end(seed: int) -> None:
    """A block's sum and its running sum round differently: who seeks its very end must not find a weight of zero."""
    random = torch.Generator().manual_seed(seed)
    weights = torch.rand(20_000, 2 * BLOCK, generator=random)
    weights[:, BLOCK - 1] = weights[:, -1] = 0
    ends = weights[:, :BLOCK].sum(-1) / weights.sum(-1)
    near = (ends * 2**24).round().add(torch.randint(-1, 2, ends.shape, generator=random)) / 2**24
    token, _ = inverse_cdf(weights, near.clamp(max=1 - 2**-24))
    assert not ((token == BLOCK - 1) | (token == 2 * BLOCK - 1)).any()
    assert ((token >= BLOCK - 4) & (token <= BLOCK + 2)).float().mean() > 0.99
