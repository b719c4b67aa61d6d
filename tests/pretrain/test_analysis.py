"""Claims about the analysis, against plain walks over the positions and against known cases."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pretrain.analysis import Observations, detection_auc, estimate_correlation, observe
from pretrain.data import Batch
from pretrain.electra import Electra


def observations(**changes: object) -> Observations:
    """Six positions, four of them masked, two replaced; the discriminator orders them perfectly."""
    values = {
        "d": np.array([3.0, 2.0, -1.0, -2.0, -3.0, -4.0]),
        "replaced": np.array([True, True, False, False, False, False]),
        "masked": np.array([True, True, True, True, False, False]),
        "estimated_loss": np.array([0.1, 0.4, 0.2, 0.3]),
        "actual_loss": np.array([0.2, 0.8, 0.7, 0.9]),
        "sampled_other": np.array([True, True, False, False]),
    }
    return Observations(**{**values, **changes})  # type: ignore[arg-type]


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    assert detection_auc(observations()) == {"auc_all": 1.0, "auc_masked": 1.0}
    d = np.array([3.0, -1.5, -1.0, -2.0, -3.0, 4.0])
    pairs = [a > b for a in d[:2] for b in d[2:]]
    assert detection_auc(observations(d=d))["auc_all"] == pytest.approx(np.mean(pairs))


def test_auc_is_none_where_nothing_was_replaced() -> None:
    assert detection_auc(observations(replaced=np.zeros(6, dtype=bool))) == {
        "auc_all": None,
        "auc_masked": None,
    }


def test_correlations_are_numpys_by_class() -> None:
    result = estimate_correlation(observations())
    assert result["replaced"] == pytest.approx(1.0)
    assert result["original"] == pytest.approx(1.0)
    assert result["all"] == pytest.approx(np.corrcoef([0.1, 0.4, 0.2, 0.3], [0.2, 0.8, 0.7, 0.9])[0, 1])


def test_an_objective_without_estimate_has_no_correlation() -> None:
    assert set(estimate_correlation(observations(estimated_loss=np.empty(0))).values()) == {None}


def test_observations_are_the_models_own_numbers_at_each_masked_position(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name="hp_loss").eval()
    observed, metrics = observe(model, [batch, batch], torch.device("cpu"))
    output = model(batch)
    assert len(observed.d) == 2 * 23 and len(observed.actual_loss) == 2 * 5
    assert observed.masked.sum() == 10 and metrics["tokens"] == 46
    row = 0
    for b in range(3):
        for k in range(2):
            if not batch.masked_valid_BK[b, k]:
                continue
            position = batch.masked_positions_BK[b, k]
            assert output.draw.z_BK is not None
            estimate = torch.sigmoid(output.draw.z_BK[b, k])
            other = bool(output.replaced_BL[b, position])
            assert observed.sampled_other[row] == other
            expected = -torch.log(1 - estimate if other else estimate)
            assert observed.estimated_loss[row] == pytest.approx(expected.item(), rel=1e-4)
            assert observed.actual_loss[row] == pytest.approx(
                output.discriminator_loss_BL[b, position].item(), rel=1e-5
            )
            row += 1
