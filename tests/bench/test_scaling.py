"""Claims about the scaling benchmark: each kind of work is timed separately, and forecasts state their assumptions."""

import pytest
import torch

from bench.scaling import ScalingOptions, Shape, measured_costs, paper_runs
from pretrain.presets import preset


@pytest.mark.long
def test_the_times_of_each_kind_of_work_add_up_to_a_step() -> None:
    threads, shape = torch.get_num_threads(), Shape(4)
    torch.set_num_threads(1)
    try:
        costs = measured_costs(preset("tiny"), ScalingOptions(preset="tiny", batch_size=4, repeats=1))
    finally:
        torch.set_num_threads(threads)
    assert min(costs.score, costs.update, costs.sent_byte) > 0
    assert costs.seconds(shape.work, 4_000_000) > shape.work.scores * costs.score


def test_forecasts_for_gpus_state_their_assumptions() -> None:
    first, *lines = paper_runs().splitlines()
    assert "ASSUMED" in first
    assert {line.split()[0] for line in lines} == {"small", "base"}
    assert all(" days at " in line and "%: " in line for line in lines)
