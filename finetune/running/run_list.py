"""The queue of runs: one launch does all requested runs that are not done yet, one after another.

A finished run is one line of OUTPUT/results.jsonl, with its answers in OUTPUT/predictions; an interrupted one resumes
from OUTPUT/checkpoints. Several launches with one OUTPUT share the runs (OUTPUT/locks). `model_folder.py` keeps models.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import NoReturn, TypeVar

import torch

from electra_sampler.foundation.command_line import print_warning
from electra_sampler.foundation.config import counted
from electra_sampler.foundation.files import require_folder
from electra_sampler.foundation.locks import Held, Lock, confirm, holder
from electra_sampler.foundation.progress import about
from electra_sampler.foundation.settings import settings_tables
from finetune.config import FinetuneOptions
from finetune.presets import paper_grid, settings_for, size_of
from finetune.running.job import Job, LoadedTask
from finetune.running.model_folder import (
    CANDIDATES,
    LOCKS,
    ModelFolder,
    keep_models,
    open_model,
    save_finetuned,
    without_seed,
)
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
from pretrain.engine.deepspeed_config import OVERRIDE, read
from pretrain.engine.deepspeed_keys import DeepSpeedConfig
from pretrain.engine.hardware import choose, compute_deterministically, require_same_precision, slow_precision
from pretrain.job.launcher import number_of
from pretrain.job.processes import leave, start_processes
from pretrain.job.stopping import EXIT_STOPPED, StopRequest

CHECKPOINTS = "checkpoints"
Options = TypeVar("Options", bound=FinetuneOptions)


def launch(options: Options, load: Callable[[Options], Iterator[LoadedTask]]) -> NoReturn:
    """Calls `run_queue` and ends the process with its exit code."""
    leave(run_queue(options, load))


def run_queue(options: Options, load: Callable[[Options], Iterator[LoadedTask]]) -> int:
    """Runs everything requested that the output folder does not have yet; returns the exit code.

    `load` checks the names of the tasks, then yields the tasks, reading the files of each when it is reached.

    Raises:
        ConfigError: a task, model, file or setting is wrong.
    """
    if options.list_settings:
        print(list_settings(options))
        return 0
    require_folder(options.output)
    tasks = load(options)
    model = open_model(options.model)  # before the files are read, which may take minutes
    return Queue([*tasks], model, options).work()


class Queue:
    """The runs of one launch, with the model, data and settings that they share."""

    def __init__(self, tasks: Sequence[LoadedTask], model: ModelFolder, options: FinetuneOptions) -> None:
        """Plans the runs and starts the processes.

        Raises:
            ConfigError: the model, the DeepSpeed configuration or a setting does not fit.
        """
        self.options, self.output, self.model = options, options.output, model
        self.tasks = {loaded.task.name: loaded for loaded in tasks}
        self.runs = [run for loaded in tasks for run in plan_runs(options, model, loaded)]
        if torch.cuda.is_available():
            compute_deterministically()
        self.world = start_processes()
        choice = choose(self.world.world_size, options.deepspeed_config)
        self.deepspeed_config = read(choice.path, options.of_deepspeed)
        for settings in dict.fromkeys(run.settings for run in self.runs):  # a mistake shows before anything is written
            resolve_for(settings, self.deepspeed_config, self.world)
        precision = self.deepspeed_config.precision
        require_same_precision(precision, self.world)
        self.say(f"precision {precision} ({choice.path.stem}): {choice.reason}")
        if self.world.is_first and (warning := slow_precision(precision)):
            print_warning(warning)
        self._jobs: dict[RunIdentity, Job] = {}

    def work(self) -> int:
        """Does every run that is neither done nor under way elsewhere; returns the process's exit code.

        After each run it starts again at the first one, since other processes may have released locks.
        """
        waiting = self.unfinished()
        self.say(f"{len(waiting)} of {len(self.runs)} runs to do, results in {self.output / FILE_NAME}")
        self.keep(self.runs)  # of a launch that was killed before it kept them
        if not waiting:
            return 0
        stop = StopRequest(self.output)
        # With other processes at work, the `stop` file is for this one too; else it is a leftover.
        stopped = self.world.share(bool(stop) and any(map(holder, (self.output / LOCKS).glob("*"))))
        try:
            if stopped:
                raise Stopped
            stop.withdraw(self.say)
            with stop:
                started = time.monotonic()
                while any(self.do_if_free(place, stop) for place in waiting):
                    took, started = time.monotonic() - started, time.monotonic()
                    if waiting := self.unfinished():
                        alone = f"{about(len(waiting) * took)} here alone, if each takes as long as the last"
                        self.say(f"{counted(len(waiting), 'run')} left: {alone}")
        except Stopped:
            self.say("stopped on request; run the same command to resume")
            return EXIT_STOPPED
        if waiting:
            self.say(f"{counted(len(waiting), 'run')} under way in other processes")
        return 0

    def unfinished(self) -> list[int]:
        """Returns the indices into `runs` of the unfinished runs; the same on every rank."""
        return self.world.share([*self.find_unfinished()] if self.world.is_first else None)

    def find_unfinished(self) -> Iterator[int]:
        """Yields the indices into `runs` of the runs that lack a record in the output folder or one of their files."""
        done = {record.run for record in read_records(self.output / FILE_NAME)}
        for place, run in enumerate(self.runs):
            folder = self.output / PREDICTIONS / run.folder_name()
            if run not in done or not all((folder / name).is_file() for name in self.tasks[run.task].files):
                yield place

    def do_if_free(self, place: int, stop: StopRequest) -> bool:
        """Does a run unless another process has done it or is doing it; returns whether it did. Collective."""
        run = self.runs[place]
        lock: Lock | None = None
        if self.world.is_first:
            with suppress(Held):
                lock = Lock(self.output / LOCKS / run.folder_name())
        with lock or nullcontext():
            free: bool = self.world.share(lock is not None and place in self.find_unfinished())
            if free:
                checkpoints = self.output / CHECKPOINTS / run.folder_name()
                self.do(run, Saving(checkpoints, lambda: bool(stop), weights=self.options.keep != "none"))
        if free:
            self.keep([other for other in self.runs if without_seed(other) == without_seed(run)])
        return free

    def keep(self, runs: Sequence[RunIdentity]) -> None:
        """For each setting whose seeds are all done, keeps the models that `--keep` selects."""
        if self.world.is_first and self.options.keep != "none":
            tasks = {name: loaded.task for name, loaded in self.tasks.items()}
            for line in keep_models(self.output, self.options.keep, runs, tasks):
                self.say(line)

    def do(self, run: RunIdentity, saving: Saving) -> None:
        """Trains a run to its end and writes its record and files.

        Raises:
            Stopped: on request, after saving a checkpoint.
        """
        started = time.monotonic()
        setting = without_seed(run)
        if setting not in self._jobs:  # its data is the same for every seed
            self._jobs.clear()  # frees the memory first
            self._jobs[setting] = self.tasks[run.task].make_job(self.model.tokenizer, run.settings)
        job = self._jobs[setting]
        outcome = train(
            self.model.path,
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
            model_size=size_of(self.model.config.hidden_size),
            train_examples=job.train_examples,
            seconds=round(time.monotonic() - started, 2),
            world_size=self.world.world_size,
            **{key: value for key, value in outcome._asdict().items() if key not in ("files", "weights")},
        )
        confirm(self.output / LOCKS / run.folder_name())
        write_files(self.output / PREDICTIONS / run.folder_name(), outcome.files)
        if outcome.weights:
            save_finetuned(self.output / CANDIDATES / run.folder_name(), self.model, job, record, outcome.weights)
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
    name, hidden_size, positions = loaded.task.name, model.config.hidden_size, model.config.max_position_embeddings
    given = [point | options.overrides() for point in (paper_grid(name, hidden_size) if options.grid else [{}])]
    wanted = [settings_for(options.settings_class, name, hidden_size, positions, values) for values in given]
    return [
        RunIdentity(
            task=name,
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
    """Returns a line for every key of `--set`, with its meaning and its value under the given options.

    A setting whose default depends on the model or the task is shown without a value.
    """
    settings = options.settings_class.model_construct(None, **options.overrides())
    file = choose(number_of("WORLD_SIZE", "1"), options.deepspeed_config).path
    of_deepspeed = settings_tables(DeepSpeedConfig, read(file, options.of_deepspeed), OVERRIDE)
    return "\n\n".join([*settings_tables(options.settings_class, settings), *of_deepspeed])
