"""Claims about distributions over the vocabulary: p_S, draws, and the search by blocks, which equals whole rows."""

import math

import pytest
import torch
from scipy.stats import chisquare, entropy
from torch import Tensor

from pretrain.method.sampling import Draw, Prediction, draw_from
from pretrain.model.distribution import (
    BLOCK,
    ENTROPY_ROWS,
    Dense,
    hp_loss_weights,
    largest,
)

SEEDS = (0, 1, 2)
LENGTHS = (1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 17)


def brute_force_p_S(p_G: list[float], D_hat: list[float], original: int, temperature: float) -> list[float]:
    weights = [
        p ** (1 / temperature) * (-math.log(d) if token == original else -math.log(1 - d))
        for token, (p, d) in enumerate(zip(p_G, D_hat, strict=True))
    ]
    return [weight / sum(weights) for weight in weights]


def drawn_from(weights: torch.Tensor, uniforms: torch.Tensor, forbid_original: int | None = None) -> Draw:
    """One draw per row of weights [X, V], with any prediction."""
    shape = weights.shape[:-1]
    original = torch.full(shape, forbid_original or 0)
    zeros = torch.zeros(shape)
    prediction = Prediction(Dense(torch.ones_like(weights)), zeros, original, zeros, zeros, None)
    return draw_from(Dense(weights), prediction, uniforms, forbid_original is not None)


def normalized(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_p_s_sums_to_one_and_is_proportional_to_p_g_times_the_estimated_loss(temperature: float) -> None:
    torch.manual_seed(0)
    logits, z = torch.randn(4, 7, dtype=torch.float64) * 3, torch.randn(4, 7, dtype=torch.float64) * 4
    original = torch.tensor([0, 3, 6, 2])
    p_G = Dense.softmax(logits).tempered(temperature).dense()
    p_S = normalized(hp_loss_weights(p_G.weights_XV, z.clone(), original))
    for row in range(4):
        p, D_hat = logits[row].softmax(-1).tolist(), torch.sigmoid(z[row]).tolist()
        expected = brute_force_p_S(p, D_hat, int(original[row]), temperature)
        assert p_S[row].tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("z", [-1e4, -60.0, -20.0, 0.0, 20.0, 1e4])
def test_an_estimate_of_any_size_gives_usable_weights(z: float) -> None:
    """Tries both signs, because the original's loss is small where the others' is large; fp32 against float64."""
    p_G, original = torch.tensor([[0.98, 0.02, 0.0], [1 / 3, 1 / 3, 1 / 3]]), torch.tensor([0, 1])
    p_S = normalized(hp_loss_weights(p_G, torch.full((2, 3), z), original))
    wide = torch.full((2, 3), z, dtype=torch.float64)
    loss = torch.nn.functional.softplus(torch.where(torch.arange(3) == original[:, None], -wide, wide))
    expected = normalized(p_G.double() * loss.clamp(min=1e-30))
    assert p_S.double().numpy() == pytest.approx(expected.numpy(), rel=1e-6)
    assert drawn_from(p_S, torch.tensor([0.5, 0.999])).log_q_BK.isfinite().all()


def test_if_all_losses_underflow_in_fp32_tokens_are_drawn_by_p_g() -> None:
    p_G = torch.tensor([0.5, 0.3, 0.2])
    p_S = normalized(hp_loss_weights(p_G, torch.tensor([200.0, -200.0, -300.0]), torch.tensor(0)))
    assert torch.allclose(p_S, p_G)


@pytest.mark.parametrize("place", [3, 300])
@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_weights_that_are_no_distribution_give_a_valid_token_with_probability_nan(weight: float, place: int) -> None:
    weights = torch.ones(4, 301)
    weights[1, place], weights[2], weights[3] = weight, 0, -1
    drawn = drawn_from(weights, torch.full((4,), 0.5))
    assert drawn.tokens_BK[0] == 150 and ((drawn.tokens_BK >= 0) & (drawn.tokens_BK < 301)).all()
    assert drawn.log_q_BK[0].isfinite() and drawn.log_q_BK[1:].isnan().all()


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.05])
def test_the_probability_of_the_drawn_token_and_the_largest_are_the_tempered_softmax(temperature: float) -> None:
    torch.manual_seed(1)
    logits = torch.randn(50, 7, dtype=torch.float64) * 3
    sampled = drawn_from(Dense.softmax(logits).tempered(temperature).dense().weights_XV, torch.rand(50))
    p = (logits / temperature).softmax(-1)
    drawn = p.gather(-1, sampled.tokens_BK[:, None]).squeeze(-1)
    assert sampled.log_q_BK.exp().tolist() == pytest.approx(drawn.tolist(), rel=1e-9)
    assert sampled.log_max_q_BK.exp().tolist() == pytest.approx(p.amax(-1).tolist(), rel=1e-9)


@pytest.mark.parametrize("rows", [1, ENTROPY_ROWS, 2 * ENTROPY_ROWS + 1])
def test_the_entropy_is_scipys_even_with_zero_probabilities(rows: int) -> None:
    weights = (torch.randn(rows, 3, 11, generator=torch.Generator().manual_seed(rows), dtype=torch.float64) * 4).exp()
    weights[:, 0, :5] = 0
    weights[:, 1, 1:] = 0
    expected = entropy(weights.numpy(), axis=-1)
    found = Dense(weights, False).entropy()
    assert found.numpy() == pytest.approx(expected, abs=1e-12)
    assert not found[:, 1].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_forbidden_original_is_never_drawn_and_the_others_keep_their_proportions(seed: int) -> None:
    p = torch.tensor([0.02, 0.9, 0.05, 0.03])
    uniforms = torch.rand(100_000, generator=torch.Generator().manual_seed(seed))
    draws = drawn_from(p.expand(100_000, 4), uniforms, forbid_original=1).tokens_BK
    counts = torch.bincount(draws, minlength=4).tolist()
    assert counts[1] == 0
    assert chisquare([counts[0], *counts[2:]], [20_000, 50_000, 30_000]).pvalue > 1e-4


def test_if_a_forbidden_original_has_all_the_weight_the_others_are_equally_likely() -> None:
    certain = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(3, 4)
    drawn = drawn_from(certain, torch.tensor([0.1, 0.5, 0.9]), forbid_original=1)
    assert drawn.tokens_BK.tolist() == [0, 2, 3]
    assert drawn.log_q_BK.exp().tolist() == pytest.approx([1 / 3] * 3)


def test_the_log_probability_and_its_gradient_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    logits = (torch.randn(4, 3, 11, dtype=torch.float64) * 5).requires_grad_()
    ids, above = torch.randint(11, (4, 3)), torch.randn(4, 3, dtype=torch.float64)
    ours = Dense.softmax(logits).log_p(ids)
    theirs = logits.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)
    assert torch.allclose(ours, theirs, rtol=1e-14)
    own, peer = (torch.autograd.grad(value, logits, above)[0] for value in (ours, theirs))
    assert torch.allclose(own, peer, rtol=1e-12, atol=1e-15)


def test_the_log_probability_is_exact_even_if_the_probability_rounds_to_zero_or_one() -> None:
    logits = torch.tensor([300.0, 0.0, 299.5])
    found = Dense.softmax(logits.expand(3, 3).requires_grad_()).log_p(torch.arange(3)).tolist()
    assert logits.softmax(-1)[1] == 0
    assert found == pytest.approx(logits.double().log_softmax(-1).tolist(), rel=1e-6)


def test_the_log_probability_of_weight_zero_is_finite_so_that_no_mean_over_a_batch_is_lost() -> None:
    assert Dense(torch.tensor([1.0, 0.0])).log_p(torch.tensor(1)).isfinite()


def keyed(number: int, seed: int) -> Tensor:
    """Uniforms of 24 bits with the lowest bit set, as in training, including the smallest and the largest."""
    torch.manual_seed(seed)
    bits = torch.randint(2**23, (number,)).mul(2).add(1)
    bits[0], bits[-1] = 1, 2**24 - 1
    return bits.float() / 2**24


@pytest.mark.parametrize("length", LENGTHS)
def test_the_largest_is_argmaxs_and_the_first_of_equal_ones(length: int) -> None:
    random = torch.Generator().manual_seed(length)
    values = torch.randn(2, 30, length, generator=random)
    coarse = values.mul(2).round()  # many equal values
    assert torch.equal(largest(values), values.argmax(-1))
    assert torch.equal(largest(coarse), coarse.argmax(-1))
    assert not largest(torch.full((3, length), -math.inf)).any()


@pytest.mark.parametrize(
    ("device", "length"),
    [*(("cpu", length) for length in LENGTHS), pytest.param("cuda", 30_522, marks=pytest.mark.gpu)],
    indirect=["device"],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_token_is_that_of_the_exact_cdf_up_to_rounding(seed: int, length: int, device: torch.device) -> None:
    """Each uniform is within a few fp32 roundings of its token's interval in float64."""
    torch.manual_seed(seed)
    weights, uniform = torch.randn(2000, length).mul(3).exp(), keyed(2000, seed)
    token, _ = Dense(weights).draw(uniform)
    share = weights.double() / weights.double().sum(-1, keepdim=True)
    end = share.cumsum(-1).gather(-1, token[:, None]).squeeze(-1)
    start = end - share.gather(-1, token[:, None]).squeeze(-1)
    assert torch.maximum(start - uniform, uniform - end).max() < (1e-6 if device.type == "cpu" else 2e-6)
    assert torch.allclose(Dense(weights).total_X.double(), weights.double().sum(-1), rtol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_frequencies_follow_the_weights(seed: int, device: torch.device) -> None:
    length, draws = 2 * BLOCK + 9, 100_000
    torch.manual_seed(seed)
    weights = torch.rand(length) + 0.1
    token, _ = Dense(weights.expand(draws, length)).draw(keyed(draws, seed))
    counts, expected = torch.bincount(token, minlength=length), weights.double() / weights.double().sum() * draws
    assert chisquare(counts.cpu(), expected.cpu()).pvalue > 1e-4


@pytest.mark.parametrize("scale", [1e-37, 1.0, 1e37])
@pytest.mark.parametrize("only", [(0,), (BLOCK,), (3, BLOCK - 1, 2 * BLOCK), (3 * BLOCK + 4,)])
def test_a_token_of_weight_zero_is_never_drawn_even_at_the_ends_of_a_block(only: tuple[int, ...], scale: float) -> None:
    weights = torch.zeros(3 * BLOCK + 5)
    weights[list(only)] = torch.rand(len(only), generator=torch.Generator().manual_seed(1)) * scale
    token, _ = Dense(weights.expand(50_000, -1)).draw(keyed(50_000, 0))
    assert set(token.tolist()) == set(only)


def test_the_token_drawn_is_the_first_whose_cumulative_sum_exceeds_the_uniform_number() -> None:
    weights = torch.zeros(2, 3 * BLOCK)
    weights[:, [BLOCK + 1, -1]] = 1.0
    assert drawn_from(weights, torch.tensor([0.0, 0.5])).tokens_BK.tolist() == [BLOCK + 1, 3 * BLOCK - 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_rounding_never_leads_past_the_end_of_a_block(seed: int) -> None:
    """A block's sum and its running sum round differently; a search for its very end must not return weight zero."""
    random = torch.Generator().manual_seed(seed)
    weights = torch.rand(20_000, 2 * BLOCK, generator=random)
    never = [BLOCK - 1, BLOCK, 2 * BLOCK - 1]
    weights[:, never] = 0
    ends = weights[:, :BLOCK].sum(-1) / weights.sum(-1)
    near = (ends * 2**24).round().add(torch.randint(-1, 2, ends.shape, generator=random)) / 2**24
    token, _ = Dense(weights).draw(near.clamp(max=1 - 2**-24))
    assert not torch.isin(token, torch.tensor(never)).any()
    assert ((token >= BLOCK - 4) & (token <= BLOCK + 2)).float().mean() > 0.99
