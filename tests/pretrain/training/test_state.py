"""Claims about the state of a run: its counters, its memory of losses, and the values derived from them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from pretrain.data.batches import BatchPlan, TrainingBatches
from pretrain.data.shards import Shards
from pretrain.engine.engine import StepResult
from pretrain.presets import PRESETS
from pretrain.training.state import RECENT, TrainingState, due, require_finite, spike

UPDATED = StepResult(False, 1.0, 1.0)


def test_a_spike_is_reported_once_counted_and_remembered_across_a_checkpoint() -> None:
    random = np.random.default_rng(0)
    state = TrainingState()
    for loss in 40 + random.normal(size=500):
        assert state.advance(UPDATED, loss) is None, "noise is no spike"
    state = TrainingState(**json.loads(json.dumps(vars(state))))  # as in state.json
    assert len(state.recent_losses) == RECENT
    assert state.advance(UPDATED, 44.0) is None
    said = state.advance(UPDATED, 60.0)
    assert said is not None and said.startswith("WARNING: step 502: loss 60 is a spike: the last 64 steps had ")
    assert state.advance(UPDATED, 40.0) is None
    assert (state.step, state.updates, state.spikes) == (503, 503, 1)


def test_an_overflows_infinite_norm_is_left_out_because_json_cannot_hold_it() -> None:
    run, state = PRESETS["tiny"], TrainingState(step=2, updates=1)
    for norm, told in ((0.5, True), (float("inf"), False)):
        values = state.values(run, StepResult(not told, norm, 1.0))
        assert ("gradient_norm" in values) == told
        json.dumps(values, allow_nan=False)


def test_periodic_actions_also_happen_after_the_last_step() -> None:
    assert [step for step in range(1, 12) if due(4, step, last=11)] == [4, 8, 11]


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
    index, epoch = batches.sequences(6)
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
