"""The queue of a launch: does the runs that are asked for and not done yet, one after another.

A finished run is one line of OUTPUT/results.jsonl, with its answers in OUTPUT/predictions; an interrupted one resumes
from OUTPUT/checkpoints. Several launches with one OUTPUT share the runs (OUTPUT/locks). `kept.py` keeps the models.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from finetune.config import FinetuneOptions
from finetune.presets import size_of
from finetune.running.job import Job
from finetune.running.kept import CANDIDATES, save_finetuned, settle, without_seed
from finetune.running.model_folder import ModelFolder
from finetune.running.records import (
    FILE_NAME,
    PREDICTIONS,
    RunIdentity,
    RunRecord,
    Task,
    append_record,
    read_records,
    write_files,
)
from finetune.running.train import Keeper, Stopped, resolve_for, train
from foundation.command_line import print_warning
from foundation.config import counted
from foundation.locks import Held, Lock, confirm, holder
from foundation.settings import settings_tables
from pretrain.engine.deepspeed_config import OVERRIDE, read
from pretrain.engine.deepspeed_keys import DeepSpeedConfig
from pretrain.engine.determinism import compute_deterministically
from pretrain.engine.hardware import choose, emulated, require_same_precision
from pretrain.job.launcher import number_of
from pretrain.job.processes import start_processes
from pretrain.job.stopping import EXIT_STOPPED, StopRequest

CHECKPOINTS, LOCKS = "checkpoints", "locks"


class Queue:
    """The runs of one launch, with the models, data and settings that they share."""

    def __init__(
        self,
        runs: Sequence[RunIdentity],
        make_job: Callable[[RunIdentity], Job],
        files: Mapping[Task, Sequence[str]],
        models: Sequence[ModelFolder],
        options: FinetuneOptions,
    ) -> None:
        """`files` names, for every task, the files in a finished run's folder of predictions.

        Raises:
            ConfigError: a model, the DeepSpeed configuration or a setting does not fit.
        """
        self.runs, self.options, self.output = runs, options, options.output
        self.files = {task.name: names for task, names in files.items()}
        self.tasks = {task.name: task for task in files}
        self.models = {model.sha256: model for model in models}
        if torch.cuda.is_available():
            compute_deterministically()
        self.world = start_processes()
        choice = choose(self.world.world_size, options.deepspeed_config)
        self.deepspeed_config = read(choice.file, options.set)
        for settings in dict.fromkeys(run.settings for run in runs):  # a mistake shows before anything is written
            resolve_for(settings, self.deepspeed_config, self.world)
        precision = self.deepspeed_config.precision
        require_same_precision(precision, self.world)
        self.say(f"precision {precision} ({choice.file.stem}): {choice.reason}")
        if self.world.is_first and (warning := emulated(precision)):
            print_warning(warning)
        self._make_job = make_job
        self._jobs: dict[RunIdentity, Job] = {}

    def work(self) -> int:
        """Does every run that is neither done nor under way elsewhere; returns the process's exit code.

        After each run it looks again from the first one: other processes may have released locks.
        """
        waiting = self.unfinished()
        self.say(f"{len(waiting)} of {len(self.runs)} runs to do, results in {self.output / FILE_NAME}")
        if self.world.is_first:
            for place, run in enumerate(self.runs):  # removes checkpoints that a killed process left of a done run
                if place not in waiting and self.checkpoints(run).exists():
                    self.take(run)
        if not waiting:
            self.settle(self.runs, say_missing=True)
            return 0
        try:
            stop = StopRequest(self.output)
            # A file beside processes at work asks them, and so this one too; else it is left of earlier ones.
            if self.world.share(bool(stop) and any(map(holder, (self.output / LOCKS).glob("*")))):
                raise Stopped
            stop.withdraw(self.say)
            with stop:
                while any(self.do_if_free(self.runs[place], stop) for place in waiting):
                    waiting = self.unfinished()
        except Stopped:
            self.say("stopped on request; run the same command to resume")
            return EXIT_STOPPED
        self.settle(self.runs, say_missing=True)
        if waiting:
            self.say(f"{counted(len(waiting), 'run')} under way in other processes")
        return 0

    def take(self, run: RunIdentity) -> Lock | None:
        """Takes the run's lock and returns it; `None` if another process has it or the run is done. First rank only.

        Removes the checkpoints of a done run.
        """
        try:
            lock = Lock(self.output / LOCKS / run.folder_name())
        except Held:
            return None
        if not unfinished([run], self.output, self.files):
            shutil.rmtree(self.checkpoints(run), ignore_errors=True)
            lock.release()
            return None
        return lock

    def checkpoints(self, run: RunIdentity) -> Path:
        """Returns the folder of the run's checkpoints, which is removed when the run is finished."""
        return self.output / CHECKPOINTS / run.folder_name()

    def do_if_free(self, run: RunIdentity, stop: StopRequest) -> bool:
        """Does a run unless another process has done it or is doing it; returns whether it did. Collective."""
        lock = self.take(run) if self.world.is_first else None
        with lock or nullcontext():
            free: bool = self.world.share(lock is not None)
            if free:
                self.do(run, Keeper(self.checkpoints(run), lambda: bool(stop), weights=self.options.keep != "none"))
        if free:
            setting = without_seed(run)
            self.settle([other for other in self.runs if without_seed(other) == setting])
        return free

    def settle(self, runs: Sequence[RunIdentity], *, say_missing: bool = False) -> None:
        """Keeps the models that `--keep` names, for each setting whose seeds are all done."""
        if self.world.is_first and self.options.keep != "none":
            missing = settle(self.output, self.output / LOCKS, self.options.keep, runs, self.tasks, self.say)
            for line in missing if say_missing else ():
                self.say(line)

    def do(self, run: RunIdentity, keeper: Keeper) -> None:
        """Trains a run to its end and writes its record and files.

        Raises:
            Stopped: on request, with everything saved.
        """
        started = time.monotonic()
        task = without_seed(run)
        if task not in self._jobs:  # its data is the same for every seed
            self._jobs.clear()  # frees the memory first
            self._jobs[task] = self._make_job(run)
        job, model = self._jobs[task], self.models[run.model_sha256]
        outcome = train(
            model.path,
            run.random_weights,
            job,
            run.settings,
            run.seed,
            self.deepspeed_config,
            self.world,
            keeper,
        )
        if not self.world.is_first:
            return
        record = RunRecord(
            run=run,
            model=self.options.model,
            step=model.step,
            model_size=size_of(model.config.hidden_size),
            train_examples=job.train_examples,
            left_out=dict(job.left_out),
            seconds=round(time.monotonic() - started, 2),
            world_size=self.world.world_size,
            **{key: value for key, value in outcome._asdict().items() if key not in ("files", "weights")},
        )
        confirm(self.output / LOCKS / run.folder_name())
        write_files(self.output / PREDICTIONS / run.folder_name(), outcome.files)
        if outcome.weights:
            head = {name[5:]: weight for name, weight in outcome.weights.items() if name.startswith("head.")}
            candidate = self.output / CANDIDATES / run.folder_name()
            save_finetuned(candidate, model, job.portray(head), record, outcome.weights, job.pad_id)
        append_record(self.output / FILE_NAME, record)
        shutil.rmtree(keeper.folder, ignore_errors=True)

    def unfinished(self) -> list[int]:
        """Returns the places in `runs` of those not done; the same on every rank."""
        return self.world.share(unfinished(self.runs, self.output, self.files) if self.world.is_first else None)

    def say(self, line: str) -> None:
        if self.world.is_first:
            print(line, flush=True)


def list_settings(options: FinetuneOptions) -> str:
    """Returns a line for every DeepSpeed key that `--set` takes, with its value under the other options."""
    file = choose(number_of("WORLD_SIZE", "1"), options.deepspeed_config).file
    return "\n\n".join(settings_tables(DeepSpeedConfig, read(file, options.set), OVERRIDE))


def unfinished(runs: Sequence[RunIdentity], output: Path, files: Mapping[str, Sequence[str]]) -> list[int]:
    """Returns the places in `runs` of those that lack a record in the output folder, or one of their files."""
    done = [record.run for record in read_records(output / FILE_NAME)]
    return [
        place
        for place, run in enumerate(runs)
        if run not in done
        or not all((output / PREDICTIONS / run.folder_name() / name).is_file() for name in files.get(run.task, ()))
    ]
