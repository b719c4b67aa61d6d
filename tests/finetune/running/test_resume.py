"""finetune/running/resume.py: a run that was stopped or killed ends as one that was not."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from finetune.glue.files import load_task
from finetune.glue.job import GlueJob, make_job
from finetune.glue.tasks import TASKS
from finetune.running.model_folder import load_tokenizer
from finetune.running.resume import Keeper, Stopped
from finetune.running.train import Outcome, Run, train
from foundation.config import ConfigError
from pretrain.huggingface.folders import load_encoder
from pretrain.job.processes import World, start_processes
from tests.finetune.conftest import two_ranks
from tests.finetune.running.test_train import SETTINGS, deepspeed_file, read_job
from tests.pretrain.engine.test_checkpoint import flip_bit

WITH_DROPOUT = SETTINGS.model_copy(update={"dropout": 0.1, "attention_dropout": 0.1, "learning_rate": 1e-2})
BATCHES = 26  # an epoch of 203 examples, eight at a time


@pytest.fixture(scope="module")
def world() -> World:
    return start_processes()


@pytest.fixture(scope="module")
def job(stock_model: Path, cola_folder: Path) -> GlueJob:
    return make_job(TASKS["CoLA"], load_task(TASKS["CoLA"], str(cola_folder)), load_tokenizer(stock_model), SETTINGS)


class Stop:
    """A request to stop that comes after so many batches."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self) -> bool:
        self.left -= 1
        return self.left == 0


class Killed(Exception):
    """Stands for a kill: nothing runs after it that would save."""


def kill_after(batches: int) -> Stop:
    stop = Stop(batches)

    def raise_at_the_end() -> bool:
        if stop():
            raise Killed
        return False

    return raise_at_the_end  # type: ignore[return-value]


def go(model: Path, job: GlueJob, world: World, folder: Path, keeper: Keeper | None) -> Outcome:
    return train(model, False, job, WITH_DROPOUT, 5, deepspeed_file(folder), world, keeper)


@pytest.fixture(scope="module")
def whole(stock_model: Path, job: GlueJob, world: World, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return go(stock_model, job, world, tmp_path_factory.mktemp("whole"), None)


# In the first epoch, at its end (saved before it is evaluated), and in the second.
@pytest.mark.parametrize("batches", [7, BATCHES, BATCHES + 3])
def test_a_stopped_run_ends_bitwise_as_one_that_was_not(
    batches: int, whole: Outcome, stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        go(stock_model, job, world, tmp_path, Keeper(tmp_path / "run", Stop(batches)))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [f"step-{batches:08d}"]
    assert go(stock_model, job, world, tmp_path, Keeper(tmp_path / "run")) == whole


def test_a_killed_run_goes_on_from_its_last_checkpoint(
    whole: Outcome, stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        go(stock_model, job, world, tmp_path, Keeper(tmp_path / "run", kill_after(19), every=8))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000016"]
    keeper = Keeper(tmp_path / "run")
    assert go(stock_model, job, world, tmp_path, keeper) == whole
    keeper.forget()
    assert not (tmp_path / "run").exists()


def test_a_run_whose_checkpoint_is_damaged_does_not_start_anew_over_it(
    stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        go(stock_model, job, world, tmp_path, Keeper(tmp_path / "run", Stop(4)))
    flip_bit(tmp_path / "run" / "step-00000004" / "state.json")
    with pytest.raises(ConfigError, match=r"checkpoints: none in .*run is whole: step-00000004 \(.*state\.json"):
        go(stock_model, job, world, tmp_path, Keeper(tmp_path / "run"))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000004"]


def test_a_run_without_checkpoints_starts_anew(
    whole: Outcome, stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    assert go(stock_model, job, world, tmp_path, Keeper(tmp_path / "nothing")) == whole


def test_loss_and_requests_to_stop_are_one_sum_a_batch(
    stock_model: Path, job: GlueJob, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(tmp_path / "run")
    run = Run(load_encoder(stock_model), job, WITH_DROPOUT, 5, deepspeed_file(tmp_path), world, keeper)
    sums, plain = [], dist.all_reduce

    def counted(tensor: torch.Tensor) -> None:
        sums.append(tensor.numel())
        plain(tensor)

    monkeypatch.setattr(dist, "all_reduce", counted)
    run.train_epoch(0)
    assert sums == [2] * BATCHES


def test_a_request_that_reaches_one_rank_stops_all(stock_model: Path, cola_folder: Path, tmp_path: Path) -> None:
    assert two_ranks("tests.finetune.running.test_resume", stock_model, cola_folder, tmp_path) == ["stopped", "stopped"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000004"]


def one_rank(model: str, data: str, folder: str) -> None:
    """What each process of `test_a_request_that_reaches_one_rank_stops_all` does: the second is asked."""
    world = start_processes()
    keeper = Keeper(Path(folder) / "run", Stop(4 if world.rank == 1 else -1))
    try:
        go(Path(model), read_job(Path(model), Path(data)), world, Path(folder), keeper)
    except Stopped:
        print("\nstopped", flush=True)


if __name__ == "__main__":
    one_rank(*sys.argv[1:])
