"""The queue of runs: one launch does all requested runs that are not done yet, one after another.

A finished run is one line of OUTPUT/results.jsonl, with its answers in OUTPUT/predictions; an interrupted one resumes
from OUTPUT/checkpoints. Several launches with one OUTPUT share the runs (OUTPUT/locks).

A finished run leaves its model in OUTPUT/candidates. When all seeds of its setting are done, the models that `--keep`
names move to OUTPUT/finetuned, and the others are removed. A folder under its final name is complete, and no folder in
OUTPUT/finetuned is ever removed.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NoReturn

import torch

from electra_sampler.foundation.command_line import print_warning
from electra_sampler.foundation.config import counted
from electra_sampler.foundation.files import folder_sha256, require_folder
from electra_sampler.foundation.locks import Held, Lock, confirm, holder
from electra_sampler.foundation.progress import about
from electra_sampler.foundation.settings import settings_tables
from finetune.config import FinetuneOptions, Options
from finetune.presets import paper_grid, settings_for, size_of
from finetune.running.job import Job, LoadedTask
from finetune.running.model_folder import save_finetuned
from finetune.running.records import (
    FILE_NAME,
    PREDICTIONS,
    RunIdentity,
    RunRecord,
    Task,
    append_record,
    choose_records,
    read_records,
    task_prefix,
    write_files,
)
from finetune.running.train import Saving, Stopped, resolve_for, train
from pretrain.engine.deepspeed_config import OVERRIDE, read
from pretrain.engine.deepspeed_keys import DeepSpeedConfig
from pretrain.engine.hardware import choose, compute_deterministically, require_same_precision, slow_precision
from pretrain.huggingface.folders import CARD
from pretrain.huggingface.stored import Stored, read_stored
from pretrain.job.launcher import number_of
from pretrain.job.processes import leave, start_processes
from pretrain.job.stopping import EXIT_STOPPED, StopRequest
from pretrain.model.sizes import EncoderSizes

CHECKPOINTS, CANDIDATES, FINETUNED, LOCKS = "checkpoints", "candidates", "finetuned", "locks"


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
    return Queue(load(options), read_stored(options.model), options).work()


class Queue:
    """The runs of one launch, with the model, data and settings that they share."""

    def __init__(self, tasks: Iterator[LoadedTask], model: Stored, options: FinetuneOptions) -> None:
        """Reads the tasks, plans the runs and starts the processes.

        Raises:
            ConfigError: the model, a task, the DeepSpeed configuration or a setting does not fit.
        """
        self.options, self.output, self.model = options, options.output, model
        self.tokenizer = model.load_tokenizer()  # before the tasks are read, which may take minutes
        digest = folder_sha256(model.folder, (CARD,))  # scores are added to a card, and the hub's may be absent here
        self.tasks = {loaded.task.name: loaded for loaded in tasks}
        self.runs = [run for loaded in self.tasks.values() for run in plan_runs(options, model.config, digest, loaded)]
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
                        self.say(
                            f"{counted(len(waiting), 'run')} left: {about(len(waiting) * took)} here alone, if each"
                            " takes as long as the last"
                        )
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
            self.keep([other for other in self.runs if other.setting == run.setting])
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
        setting = run.setting
        if setting not in self._jobs:  # its data is the same for every seed
            self._jobs.clear()  # frees the memory first
            self._jobs[setting] = self.tasks[run.task].make_job(self.tokenizer, run.settings)
        job = self._jobs[setting]
        outcome = train(
            self.model,
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


def keep_models(output: Path, keep: str, runs: Sequence[RunIdentity], tasks: Mapping[str, Task]) -> Iterator[str]:
    """For each setting of `runs` whose seeds are all done, keeps the chosen models and removes the others.

    Skips a setting while another process works on its task, since that launch may add seeds. Yields a line for each
    model that is kept, or that should be kept but is missing.
    """
    done = {record.run: record for record in read_records(output / FILE_NAME)}
    for setting in dict.fromkeys(run.setting for run in runs):
        task = tasks[setting.task]
        waits = any(run not in done for run in runs if run.setting == setting)
        if waits or any(map(holder, (output / LOCKS).glob(f"{task_prefix(setting.task)}*"))):
            continue
        records = [record for run, record in done.items() if run.setting == setting]
        for record in choose_records(keep, records, task):
            name, score = record.run.folder_name(), record.last[task.dev_splits[0]][task.metrics[0]]
            candidate, kept = output / CANDIDATES / name, output / FINETUNED / name
            which = f"{task.name} seed {record.run.seed} ({keep} of {len(records)}, {task.metrics[0]} {score:.4f})"
            if candidate.is_dir() and not kept.exists():
                kept.parent.mkdir(exist_ok=True)
                candidate.rename(kept)
                yield f"{which}: model kept in {kept}"
            elif not kept.exists():
                yield f"{which}: no model was saved when it ran; to get one, run it again with another --output"
        for record in records:
            for folder in (output / CANDIDATES).glob(f"{record.run.folder_name()}*"):  # whole, or left by a kill
                shutil.rmtree(folder)


def plan_runs(options: FinetuneOptions, sizes: EncoderSizes, digest: str, loaded: LoadedTask) -> list[RunIdentity]:
    """Returns the runs that the options ask for on one task: one per setting and seed, of a model with these sizes and
    this digest.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """
    name, hidden_size, positions = loaded.task.name, sizes.hidden_size, sizes.max_position_embeddings
    given = [point | options.overrides() for point in (paper_grid(name, hidden_size) if options.grid else [{}])]
    wanted = [settings_for(options.settings_class, name, hidden_size, positions, values) for values in given]
    return [
        RunIdentity(
            task=name,
            seed=seed,
            model_sha256=digest,
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
