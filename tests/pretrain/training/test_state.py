"""Claims about the state of a run: its counters, its memory of losses, and the values derived from them."""

import json

import numpy as np

from pretrain.engine.engine import StepResult
from pretrain.presets import PRESETS
from pretrain.training.guards import RECENT
from pretrain.training.state import TrainingState, due

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


def test_a_checkpoint_from_before_losses_were_remembered_can_be_resumed() -> None:
    assert TrainingState(**{"step": 5, "updates": 4}).advance(UPDATED, 1.0) is None


def test_an_overflows_infinite_norm_is_left_out_because_json_cannot_hold_it() -> None:
    run, state = PRESETS["tiny"], TrainingState(step=2, updates=1)
    for norm, told in ((0.5, True), (float("inf"), False)):
        values = state.values(run, StepResult(not told, norm, 1.0))
        assert ("gradient_norm" in values) == told
        json.dumps(values, allow_nan=False)


def test_periodic_actions_also_happen_after_the_last_step() -> None:
    assert [step for step in range(1, 12) if due(4, step, last=11)] == [4, 8, 11]
