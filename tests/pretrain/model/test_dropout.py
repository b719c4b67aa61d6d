"""Claims about dropout on a CPU: its share, its scale, its independence, its keys."""

import pytest
import torch

from pretrain.model.dropout import Dropout, kept

HALF_AND_FULL = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", HALF_AND_FULL)
@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 1 - 1e-9])
def test_the_factors_are_zero_and_what_keeps_the_mean_whatever_the_precision(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dropped = min(round(p * 65536), 65535)
    factors = kept(torch.Size([300, 1001]), p, dtype)
    assert factors.dtype == dtype and factors.shape == (300, 1001)
    expected = torch.tensor([0.0, 65536 / (65536 - dropped)], dtype=torch.float64).to(dtype)
    assert set(factors.unique().tolist()) == set(expected[0 if dropped else 1 :].tolist())


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_dropped_share_is_p_and_the_mean_stays(p: float) -> None:
    torch.manual_seed(0)
    factors = kept(torch.Size([1000, 1001]), p, torch.float32)
    deviation = (p * (1 - p) / factors.numel()) ** 0.5
    assert abs((factors == 0).float().mean().item() - p) < 4 * deviation
    assert abs(factors.mean().item() - 1) < 4 * deviation / (1 - p)
    assert factors.unique().tolist() == [0.0, pytest.approx(1 / (1 - p), rel=1e-4)]


def test_every_lane_of_a_word_and_every_pair_of_lanes_is_as_likely() -> None:
    torch.manual_seed(0)
    dropped = kept(torch.Size([400_000, 4]), 0.1, torch.float64) == 0
    share_4 = dropped.double().mean(0)
    assert (share_4 - 0.1).abs().max().item() < 4 * (0.09 / 400_000) ** 0.5
    correlation_44 = torch.corrcoef(dropped.double().T) - torch.eye(4)
    assert correlation_44.abs().max().item() < 4 / 400_000**0.5


def test_the_gradient_passes_where_the_value_did_with_the_same_factor() -> None:
    values = torch.randn(37, 41, requires_grad=True)
    dropped = Dropout(0.3).train()(values)
    dropped.sum().backward()
    assert values.grad is not None
    assert torch.equal(dropped, values.detach() * values.grad)


@pytest.mark.parametrize("dtype", HALF_AND_FULL)
def test_the_seed_decides_and_the_precision_changes_no_choice(dtype: torch.dtype) -> None:
    def drawn(seed: int, dtype: torch.dtype) -> torch.Tensor:
        torch.manual_seed(seed)
        return kept(torch.Size([513]), 0.1, dtype) > 0

    assert torch.equal(drawn(3, dtype), drawn(3, torch.float32))
    assert not torch.equal(drawn(3, dtype), drawn(4, dtype))


def test_nothing_is_dropped_outside_training_or_with_probability_0() -> None:
    values = torch.randn(9)
    assert torch.equal(Dropout(0.5).eval()(values), values)
    assert torch.equal(Dropout(0.0).train()(values), values)
