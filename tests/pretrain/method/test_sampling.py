"""Claims about importance weights and the replaced sequence."""

import torch

from pretrain.data.batches import Batch
from pretrain.method.sampling import importance_weights, replace


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
