"""Claims about the doctor's benchmark: each planted run is named after a finding, and its options are valid."""

import inspect
import re
import shlex

import pytest

from bench.doctor import PLANTED, SIZES, Planned, healthy, planted
from pretrain.analysis import health
from pretrain.config import with_overrides
from pretrain.presets import PAPER, PRESETS, with_objective


def test_each_sickness_is_planted_exactly_once_under_its_finding():
    named = re.findall(r'name="([\w ]+)"', inspect.getsource(health))
    assert sorted(named) == sorted(PLANTED)
    assert len(named) == len(health.AT_ONCE + health.ONCE_LEARNED) == 11


def test_twenty_healthy_runs_cover_every_objective_of_the_paper_and_size_in_both_halves_without_repetition():
    runs = [*healthy()]
    assert len({run.name for run in runs}) == len(runs) == 20
    halves = [{run.name for run in runs if run.group == group} for group in ("sets thresholds", "held back")]
    for half in halves:
        assert len(half) == 10
        assert all(any(name.startswith(f"{objective}-") for name in half) for objective in PAPER)
        assert all(any(f"-{size}-" in name for name in half) for size in SIZES)


@pytest.mark.parametrize("run", [*healthy(), *planted()], ids=lambda run: run.name)
def test_the_options_of_a_run_are_accepted(run: Planned):
    _, objective, _, *overrides = shlex.split(run.options)
    with_overrides(with_objective(PRESETS["tiny"], objective), overrides)
