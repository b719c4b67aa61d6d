"""Claims about an optimizer step and a resume, in one process; the tests of both trainings use several."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import Tensor

from electra_sampler.foundation.config import ConfigError
from pretrain.engine.checkpoint import save
from pretrain.engine.engine import Engine, accumulate, end_step, resume
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import start_processes
from tests.pretrain.engine import engine_worker as worker
from tests.pretrain.engine.test_checkpoint import flip_bit


@dataclass
class Steps:
    """Progress of a run."""

    done: int = 0


def new_engine(seed: int = 0) -> Engine:
    model = worker.small_model(seed)
    config = worker.resolved_config("zero1_fp32", world_size=1)
    return Engine(model, parameter_groups(model, worker.OPTIM.weight_decay), config, start_processes())


def losses(engine: Engine, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Losses as computed in `worker.Runner`."""
    ids_BL, real_BL = worker.batch_of(step)
    for rows in zip(ids_BL.split(worker.MICRO_BATCH), real_BL.split(worker.MICRO_BATCH), strict=True):
        loss_sum = engine.forward(*rows)["loss_sum"]
        yield loss_sum * engine.config.accumulation_steps / real_BL.sum(), loss_sum.detach() / real_BL.sum()


def test_a_step_is_one_update_by_the_mean_over_its_micro_batches() -> None:
    engine, other = new_engine(), new_engine()
    assert engine.config.accumulation_steps > 1
    for step in range(3):
        total = accumulate(engine, losses(engine, step))
        result, (loss, requested) = end_step(engine, total, [False], worker.rate(step)).read()
        assert loss == pytest.approx(worker.Runner(other).step(step)[0], rel=1e-6)
        assert (result.overflow, requested) == (False, 0)
    assert engine.full_state().adam_steps == 3
    assert worker.same_states(engine.full_state(), other.full_state())


def test_a_wish_during_the_step_is_returned_with_it() -> None:
    engine = new_engine()
    total = accumulate(engine, losses(engine, 0))
    assert end_step(engine, total, [True, False], worker.rate(0)).read()[1][1:] == [1, 0]
    assert engine.full_state().adam_steps == 1


def test_a_resume_loads_engine_and_progress_and_changes_nothing_without_a_checkpoint(tmp_path: Path) -> None:
    trained, fresh = new_engine(), new_engine(seed=1)
    worker.Runner(trained).train(range(2))
    start = fresh.full_state()
    assert resume(tmp_path, fresh, Steps) == Steps(0)
    assert worker.same_states(fresh.full_state(), start)
    save(tmp_path, 2, trained.full_state(), {"done": 2}, keep_last=1)
    assert resume(tmp_path, fresh, Steps) == Steps(2)
    assert worker.same_states(fresh.full_state(), trained.full_state())


def test_a_resume_uses_the_checkpoint_before_a_damaged_one_but_never_starts_over(tmp_path: Path) -> None:
    engine = new_engine()
    for step in (1, 2):
        save(tmp_path, step, engine.full_state(), {"done": step}, keep_last=2)
    flip_bit(tmp_path / "step-00000002" / "weights.safetensors")
    assert resume(tmp_path, engine, Steps) == Steps(1)
    flip_bit(tmp_path / "step-00000001" / "weights.safetensors")
    with pytest.raises(ConfigError, match=r"none in .* is intact"):
        resume(tmp_path, engine, Steps)
