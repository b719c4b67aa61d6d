"""Claims about importance weights, the replaced sequence, and the choice among candidates."""

import pytest
import torch

from pretrain.data.batches import Batch
from pretrain.method.sampling import Prediction, draw_from, importance_weights, replace, resample
from pretrain.model.distribution import Dense


def test_importance_weights_are_the_ratio_at_masked_positions_and_one_elsewhere(batch: Batch) -> None:
    ratio = torch.tensor([[0.5, 2.0], [1.0, 4.0], [0.1, 99.0]])
    weights = importance_weights(ratio.log(), batch)
    expected = torch.ones(3, 10)
    for b, k in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0)):  # the sixth slot is not valid
        expected[b, batch.masked_positions_BK[b, k]] = ratio[b, k]
    assert torch.allclose(weights, expected)


def test_replacement_changes_only_the_valid_positions() -> None:
    ids = torch.tensor([[2, 5, 6, 3], [2, 6, 3, 0]])
    replaced = replace(
        ids,
        torch.tensor([[1, 2], [1, 0]]),
        torch.tensor([[True, True], [True, False]]),
        torch.tensor([[6, 6], [5, 9]]),
    )
    assert replaced.tolist() == [[2, 6, 6, 3], [2, 5, 3, 0]]
    assert ids.tolist() == [[2, 5, 6, 3], [2, 6, 3, 0]]


def test_candidates_are_chosen_in_proportion_to_their_weights_and_the_ratio_of_the_choice_has_the_mean_1() -> None:
    rows, q = 10_000, torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    p_BKV = q.expand(rows, 1, 3)
    top = torch.zeros(rows, 1, dtype=torch.int64)
    prediction = Prediction(Dense(p_BKV), p_BKV[..., 0].log(), top)
    candidates = [draw_from(Dense(p_BKV), prediction, torch.full((rows, 1), uniform)) for uniform in (0.1, 0.6, 0.2)]
    assert [one.tokens_BK[0].item() for one in candidates] == [0, 1, 0]
    weights = torch.tensor([0.2, 0.3, 1.5], dtype=torch.float64)
    grid = ((torch.arange(rows) + 0.5) / rows)[:, None]
    drawn = resample(candidates, weights.expand(rows, 1, 3), prediction, grid)
    assert (drawn.tokens_BK == 1).double().mean().item() == pytest.approx(0.15, abs=1e-4)
    assert drawn.log_ratio_BK.exp().mean().item() == pytest.approx(1, rel=1e-3)
    mean = weights.mean()
    expected = {0.2: mean / 0.2, 0.3: mean / 0.3, 1.5: mean / 1.5}
    found = drawn.log_ratio_BK.exp().unique()
    assert torch.allclose(found, torch.tensor(sorted(map(float, expected.values())), dtype=torch.float64))
    assert drawn.entropy_q_BK is None
    asked = resample(candidates, weights.expand(rows, 1, 3), prediction._replace(entropy_BK=torch.ones(rows, 1)), grid)
    shares = weights / weights.sum()
    likely = (torch.tensor([0.5, 0.25, 0.5], dtype=torch.float64) * weights / mean).clamp(max=1).log()
    assert asked.entropy_q_BK is not None and torch.allclose(asked.entropy_q_BK, -(shares * likely).sum())
    assert torch.allclose(asked.log_max_q_BK, likely.max())
