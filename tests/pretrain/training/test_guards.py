"""Claims about the checks of each step. test_engine.py covers the engine's part, test_train.py the run's."""

import json
import math
from pathlib import Path

import pytest

from pretrain.data.batches import BatchPlan, TrainingBatches
from pretrain.data.shards import Shards
from pretrain.engine.engine import StepResult
from pretrain.training.guards import RECENT, require_finite, spike

UPDATED = StepResult(False, 1.0, 1.0)


def overflow(loss_scale: float, fatal: bool) -> StepResult:
    return StepResult(True, math.inf, loss_scale, fatal)


@pytest.fixture
def batches(shards_folder: Path) -> TrainingBatches:
    return TrainingBatches(Shards(shards_folder), BatchPlan(8, 4, 2, 0), seed=0)


@pytest.mark.parametrize(
    ("result", "loss", "said"),
    [
        (overflow(1, fatal=True), 3.5, r"step 7: .* \(loss 3.5, loss scale 1 cannot fall further\)"),
        (overflow(1, fatal=True), math.nan, r"step 7: .* \(loss nan, loss scale 1 cannot fall further\)"),
        (overflow(2**16, fatal=False), math.inf, r"step 7: .* \(loss inf, loss scale 65536\)"),
    ],
    ids=["gradient", "loss", "loss under a scale that could fall"],
)
def test_problems_that_no_loss_scale_solves_are_errors_with_step_and_samples(
    result: StepResult, loss: float, said: str, batches: TrainingBatches, tmp_path: Path
) -> None:
    with pytest.raises(FloatingPointError, match=said):
        require_finite(result, loss, 7, batches, tmp_path)
    named = json.loads((tmp_path / "nonfinite-step-7.json").read_text())
    index, epoch = batches.sequences(7)
    assert named == {"step": 7, "sequences": index.tolist(), "epochs": epoch.tolist()}


@pytest.mark.parametrize("result", [UPDATED, overflow(4, fatal=False)], ids=["update", "overflow"])
def test_an_update_and_an_overflow_solved_by_a_smaller_scale_pass(
    result: StepResult, batches: TrainingBatches, tmp_path: Path
) -> None:
    require_finite(result, 3.5, 7, batches, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_falling_loss_is_no_spike_and_nothing_is_before_there_is_a_reference() -> None:
    assert spike(-100.0, [1.0, 2.0] * RECENT) is None
    assert spike(1e9, [1.0, 2.0] * (RECENT // 2 - 1)) is None
