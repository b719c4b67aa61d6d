"""The queue of a launch: does the requested runs that are not done yet, one after another.

A finished run is one line of OUTPUT/results.jsonl, with its answers in OUTPUT/predictions; an interrupted one resumes
from OUTPUT/checkpoints. Several launches with one OUTPUT share the runs (OUTPUT/locks). `kept.py` keeps the models.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NoReturn, TypeVar

import torch

from finetune.config import FinetuneOptions
from finetune.presets import paper_grid, size_of
from finetune.running.job import Job, LoadedTask
from finetune.running.kept import CANDIDATES, LOCKS, keep_models, save_finetuned, without_seed
from finetune.running.model_folder import ModelFolder, open_models
from finetune.running.records import (
    FILE_NAME,
    PREDICTIONS,
    RunIdentity,
    RunRecord,
    append_record,
    read_records,
    write_files,
)
from finetune.running.train import Saving, Stopped, resolve_for, train
from foundation.command_line import print_warning
from foundation.config import counted
from foundation.files import require_folder
from foundation.locks import Held, Lock, confirm, holder
from foundation.settings import settings_tables
from pretrain.engine.deepspeed_config import OVERRIDE, read
from pretrain.engine.deepspeed_keys import DeepSpeedConfig
from pretrain.engine.hardware import choose, compute_deterministically, emulated, require_same_precision
from pretrain.job.launcher import number_of
from pretrain.job.processes import leave, start_processes
from pretrain.job.stopping import EXIT_STOPPED, StopRequest

CHECKPOINTS = "checkpoints"
Options = TypeVar("Options", bound=FinetuneOptions)
Chosen = TypeVar("Chosen")


def launch(
    options: Options,
    select: Callable[[Options], Sequence[Chosen]],
    load: Callable[[Chosen, Options], LoadedTask],
) -> NoReturn:
    """Does what `run_queue` does, and ends the process."""
    leave(run_queue(options, select, load))


def run_queue(
    options: Options,
    select: Callable[[Options], Sequence[Chosen]],
    load: Callable[[Chosen, Options], LoadedTask],
) -> int:
    """Does the runs that the options ask for and the output folder lacks; returns the exit code.

    `select` names the tasks, `load` reads the files of one: all of them before the first run.

    Raises:
        ConfigError: a wrong task, model, file or setting.
    """
    if options.list_settings:
        print(list_settings(options))
        return 0
    require_folder(options.output)
    selected = select(options)
    models = open_models(options)
    return Queue([load(task, options) for task in selected], models, options).work()


class Queue:
    """The runs of one launch, with the models, data and settings that they share."""

    def __init__(self, tasks: Sequence[LoadedTask], models: Sequence[ModelFolder], options: FinetuneOptions) -> None:
        """Plans the runs and starts the processes.

        Raises:
            ConfigError: a model, the DeepSpeed configuration or a setting does not fit.
        """
        self.options, self.output = options, options.output
        self.tasks = {loaded.task.name: loaded for loaded in tasks}
        self.models = {model.sha256: model for model in models}
        self.runs = [run for model in models for loaded in tasks for run in plan_runs(options, model, loaded)]
        if torch.cuda.is_available():
            compute_deterministically()
        self.world = start_processes()
        choice = choose(self.world.world_size, options.deepspeed_config)
        self.deepspeed_config = read(choice.file, options.of_deepspeed)
        for settings in dict.fromkeys(run.settings for run in self.runs):  # a mistake shows before anything is written
            resolve_for(settings, self.deepspeed_config, self.world)
        precision = self.deepspeed_config.precision
        require_same_precision(precision, self.world)
        self.say(f"precision {precision} ({choice.file.stem}): {choice.reason}")
        if self.world.is_first and (warning := emulated(precision)):
            print_warning(warning)
        self._jobs: dict[RunIdentity, Job] = {}
        self._said: set[str] = set()

    def work(self) -> int:
        """Does every run that is neither done nor under way elsewhere; returns the process's exit code.

        After each run it looks again from the first one: other processes may have released locks.
        """
        waiting = self.unfinished()
        self.say(f"{len(waiting)} of {len(self.runs)} runs to do, results in {self.output / FILE_NAME}")
        self.remove_checkpoints_of_done_runs(waiting)
        try:
            if waiting:
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
        self.keep(self.runs)
        if waiting:
            self.say(f"{counted(len(waiting), 'run')} under way in other processes")
        return 0

    def unfinished(self) -> list[int]:
        """Returns the places in `runs` of those not done; the same on every rank."""
        return self.world.share(self.find_unfinished(self.runs) if self.world.is_first else None)

    def find_unfinished(self, runs: Sequence[RunIdentity]) -> list[int]:
        """Returns the places in `runs` of the runs that lack a record in the output folder, or one of their files."""
        done = {record.run for record in read_records(self.output / FILE_NAME)}
        folders = [self.output / PREDICTIONS / run.folder_name() for run in runs]
        return [
            place
            for place, (run, folder) in enumerate(zip(runs, folders, strict=True))
            if run not in done or not all((folder / name).is_file() for name in self.tasks[run.task].files)
        ]

    def remove_checkpoints_of_done_runs(self, waiting: Sequence[int]) -> None:
        """Removes what a process killed at the end of a run left of it, unless another one works there."""
        for place, run in enumerate(self.runs) if self.world.is_first else ():
            if place not in waiting and self.checkpoints(run).exists():
                with suppress(Held), Lock(self.output / LOCKS / run.folder_name()):
                    shutil.rmtree(self.checkpoints(run), ignore_errors=True)

    def checkpoints(self, run: RunIdentity) -> Path:
        """Returns the folder of the run's checkpoints, which is removed when the run is finished."""
        return self.output / CHECKPOINTS / run.folder_name()

    def take(self, run: RunIdentity) -> Lock | None:
        """Takes the run's lock and returns it; `None` if another process has it or the run is done. First rank only."""
        try:
            lock = Lock(self.output / LOCKS / run.folder_name())
        except Held:
            return None
        if self.find_unfinished([run]):
            return lock
        lock.release()
        return None

    def do_if_free(self, run: RunIdentity, stop: StopRequest) -> bool:
        """Does a run unless another process has done it or is doing it; returns whether it did. Collective."""
        lock = self.take(run) if self.world.is_first else None
        with lock or nullcontext():
            free: bool = self.world.share(lock is not None)
            if free:
                self.do(run, Saving(self.checkpoints(run), lambda: bool(stop), weights=self.options.keep != "none"))
        if free:
            self.keep([other for other in self.runs if without_seed(other) == without_seed(run)])
        return free

    def keep(self, runs: Sequence[RunIdentity]) -> None:
        """Keeps the models that `--keep` names, for each setting whose seeds are all done."""
        if self.world.is_first and self.options.keep != "none":
            tasks = {name: loaded.task for name, loaded in self.tasks.items()}
            for line in keep_models(self.output, self.options.keep, runs, tasks):
                if line not in self._said:
                    self.say(line)
                self._said.add(line)

    def do(self, run: RunIdentity, saving: Saving) -> None:
        """Trains a run to its end and writes its record and files.

        Raises:
            Stopped: on request, with everything saved.
        """
        started = time.monotonic()
        setting, model = without_seed(run), self.models[run.model_sha256]
        if setting not in self._jobs:  # its data is the same for every seed
            self._jobs.clear()  # frees the memory first
            self._jobs[setting] = self.tasks[run.task].make_job(model.tokenizer, run.settings)
        job = self._jobs[setting]
        outcome = train(
            model.path,
            run.random_weights,
            job,
            run.settings,
            run.seed,
            self.deepspeed_config,
            self.world,
            saving,
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
            save_finetuned(self.output / CANDIDATES / run.folder_name(), model, job, record, outcome.weights)
        append_record(self.output / FILE_NAME, record)
        shutil.rmtree(saving.folder, ignore_errors=True)

    def say(self, line: str) -> None:
        if self.world.is_first:
            print(line, flush=True)


def plan_runs(options: FinetuneOptions, model: ModelFolder, loaded: LoadedTask) -> list[RunIdentity]:
    """Returns the runs that the options ask for on one task: one per setting and seed.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """
    hidden_size, positions = model.config.hidden_size, model.config.max_position_embeddings
    points = paper_grid(loaded.task.name, hidden_size) if options.grid else [{}]
    wanted = [loaded.settings(hidden_size, positions, point | options.overrides()) for point in points]
    return [
        RunIdentity(
            task=loaded.task.name,
            seed=seed,
            model_sha256=model.sha256,
            random_weights=options.random_weights,
            data_sha256=loaded.data_sha256,
            settings=settings,
        )
        for settings in dict.fromkeys(wanted)
        for seed in dict.fromkeys(options.seeds)
    ]


def list_settings(options: FinetuneOptions) -> str:
    """Returns a line for every key that `--set` takes, with its value under the other options and its meaning.

    A setting whose value depends on the model or the task has none.
    """
    settings = options.settings_class.model_construct(None, **options.overrides())
    file = choose(number_of("WORLD_SIZE", "1"), options.deepspeed_config).file
    of_deepspeed = settings_tables(DeepSpeedConfig, read(file, options.of_deepspeed), OVERRIDE)
    return "\n\n".join([*settings_tables(options.settings_class, settings), *of_deepspeed])
