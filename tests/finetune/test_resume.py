"""finetune/resume.py: a run that was stopped or killed ends as one that was not."""

from pathlib import Path

import pytest

from finetune.glue_job import GlueJob, make_job
from finetune.model_folder import load_tokenizer
from finetune.resume import Keeper, Stopped
from finetune.tasks.glue import TASKS
from finetune.tasks.glue_files import load_task
from finetune.train import Outcome, train
from pretrain.processes import World, start_processes
from tests.finetune.test_train import SETTINGS, deepspeed_file

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


def test_a_run_without_checkpoints_starts_anew(
    whole: Outcome, stock_model: Path, job: GlueJob, world: World, tmp_path: Path
) -> None:
    assert go(stock_model, job, world, tmp_path, Keeper(tmp_path / "nothing")) == whole
