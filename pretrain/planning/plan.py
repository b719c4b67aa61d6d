"""The plan of a run: reads and checks everything that one process can check before anything starts."""

import socket
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from data_prep.masking import COPIES_PER_SHUFFLE, MASK_RATE
from foundation.config import ConfigError, counted
from foundation.files import require_folder
from foundation.settings import settings_tables
from pretrain.config import RunConfig, with_overrides
from pretrain.data.remote import CACHE, GB
from pretrain.data.shards import Shards, open_held_out, open_shards
from pretrain.engine.deepspeed_config import OVERRIDE, EngineConfig, read, resolve
from pretrain.engine.deepspeed_keys import DeepSpeedConfig
from pretrain.engine.graphs import unreplayable
from pretrain.engine.hardware import AUTO, Choice, choose, file_of, name_of_hardware
from pretrain.huggingface.init_from import Donors, require_fit, with_sizes_of
from pretrain.job.launcher import number_of
from pretrain.job.processes import World
from pretrain.planning.estimates import GPUS, Machine, Sizes, step_seconds, this_machine, too_large
from pretrain.planning.hosts import Slots, read_hostfile
from pretrain.planning.options import RunOptions
from pretrain.presets import preset, with_objective, with_row
from pretrain.runs.folder import RunDescription, describe, differences, find_run, read_run
from pretrain.runs.models import find_sources, is_run

Made = TypeVar("Made")


class Target(NamedTuple):
    """The processes that a plan is for."""

    processes: int
    gpu: str | None
    """The GPU that a dry run assumes, by its name in `estimates.GPUS`; `None` for this machine."""
    slots: Slots | None
    """Slots of each host in the hostfile that a dry run checks."""

    @property
    def on_gpu(self) -> bool:
        return self.gpu is not None or torch.cuda.is_available()


class Plan(NamedTuple):
    """A run whose configuration, data and run folder were checked by one process before anything starts."""

    options: RunOptions
    run: RunConfig
    shards: Shards
    held_out: Shards | None
    sources: Donors | None
    """The models that --init_from names."""
    description: RunDescription
    started: RunDescription | None
    """The description of the run that is already in the folder."""
    deepspeed: EngineConfig
    choice: Choice
    """The file that `deepspeed` was read from, and why it was chosen."""
    target: Target

    @property
    def folder(self) -> Path:
        return self.options.folder

    @property
    def graphs(self) -> bool:
        """Whether CUDA graphs replay the micro-batches; `auto`: wherever they can, but not compiled layers."""
        if self.options.graphs != "auto":
            return self.options.graphs == "on"
        return not self.options.compile and not any(unreplayable(self.deepspeed, self.target.on_gpu))

    def __str__(self) -> str:
        """The plan in five lines; every setting is in the run folder's run.json."""
        sequences, length = self.run.batch_size * self.run.optim.steps, self.shards.mixture.mean_length
        of_data = (
            f"{folder}: {size:,} sequences, {share:.1%} of the samples, {sequences * share / size:,.2f} epochs"
            for folder, size, share in self.shards.mixture
        )
        return "\n".join(
            (
                f"run folder  {self.folder}",
                f"training    {self.run.objective.name}, {self.run.optim.steps:,} steps of {self.run.batch_size}"
                f" sequences, {sequences * length:.3g} tokens: {length:.1f} per sequence",
                f"data        {'; '.join(of_data)}",
                f"processes   {self.target.processes}, each {counted(self.deepspeed.micro_batch_size, 'sequence')}"
                f" x {counted(self.deepspeed.accumulation_steps, 'micro-batch', 'micro-batches')} per step",
                f"precision   {self.deepspeed.precision} ({self.choice.file.stem}): {self.choice.reason}",
            )
        )

    def seconds(self, machine: Machine, steps: int) -> float:
        """Returns the forecast seconds of `steps` steps; a GPU computes padding too."""
        length = self.shards.manifest.seq_length if machine.capability > (0, 0) else self.shards.mixture.mean_length
        tokens, rounds = self.run.batch_size * length, self.deepspeed.accumulation_steps
        return steps * step_seconds(self.sizes, machine, tokens, self.target.processes, rounds, self.graphs)

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.run, self.shards.manifest.vocab_size, self.shards.manifest.seq_length)

    @property
    def flops_per_step(self) -> float:
        """Floating-point operations of a step, without those on padding."""
        return self.sizes.flops * self.run.batch_size * self.shards.mixture.mean_length

    def machine(self, world: World | None = None) -> Machine:
        """Returns the machine of this plan: the GPUs that a dry run assumes, else this machine. Collective.

        Raises:
            ConfigError: there is no published speed of that GPU in the run's precision.
        """
        gpu, precision, processes = self.target.gpu, self.deepspeed.precision, self.target.processes
        if not gpu:
            return this_machine(self.sizes, precision, processes, world)
        if found := GPUS.get((gpu, precision)):
            flops = found.flops * processes * min(1.0, self.run.model.hidden_size / found.width)
            return found._replace(name=f"{processes} {found.name}", flops=flops)
        raise ConfigError(
            f"forecast: got {gpu} with {precision}, for which no speed is published; choose another --forecast or"
            " --deepspeed_config"
        )


class Problems(list[str]):
    """Everything wrong with a plan, collected so that one error names it all."""

    def attempt(self, make: Callable[[], Made]) -> Made | None:
        """Returns what `make` returns, or adds the problems of its ConfigError."""
        try:
            return make()
        except ConfigError as error:
            self.extend(error.problems)
            return None


def make_plan(options: RunOptions) -> Plan:
    """Reads and checks configuration, data and run folder, before any process group exists.

    Raises:
        ConfigError: every mistake in the options, the data and the run folder, as far as the rest could be read.
    """
    CACHE.limit, folder = round(options.cache_gb * GB), options.folder
    problems = Problems(contradictions(options))
    sources = problems.attempt(lambda: find_sources(options.init_from) if options.init_from else None)
    run = problems.attempt(lambda: choose_run(options, sources))
    window = run.shards_per_window if run else 0
    shards = problems.attempt(lambda: open_shards(*options.data, weights=options.data_weights, window=window))
    started = problems.attempt(lambda: find_run(folder))
    target = problems.attempt(lambda: target_of(options))
    choice = problems.attempt(lambda: choose_file(options, started, target)) if target else None
    file = problems.attempt(lambda: read(choice.file, of_deepspeed(options))) if choice else None
    problems.attempt(lambda: require_folder(folder))
    if run is None or shards is None or target is None or choice is None or file is None:
        raise ConfigError(*problems)

    device, manifest = "cuda" if target.on_gpu else "cpu", shards.manifest
    sizes = {"batch_size": run.batch_size, "world_size": target.processes}
    deepspeed = problems.attempt(
        lambda: resolve(file, **sizes, device_type=device, clipping=run.optim.gradient_clipping)
    )
    problems.attempt(shards.require_room)
    problems += mismatches(options, run, shards)
    if sources:
        vocabulary = shards.folders[0] / "tokenizer"
        problems.attempt(lambda: require_fit(sources, run, manifest.vocab_size, vocabulary))
    if deepspeed is None:
        raise ConfigError(*problems)
    if options.graphs == "on":
        problems += [f"graphs: got on {reason}; leave it out" for reason in unreplayable(deepspeed, target.on_gpu)]
    of_run = Sizes(run, manifest.vocab_size, manifest.seq_length)
    problems += too_large(of_run, deepspeed.micro_batch_size, target.on_gpu)
    description = describe(
        run,
        shards,
        options.data_weights,
        options.init_from,
        options.keep_optimizer,
        precision=deepspeed.precision,
        hardware=name_of_hardware(),
    )
    problems += differences(folder, started, description)
    if problems:
        raise ConfigError(*problems)
    held_out = open_held_out(*map(Path, shards.names))
    return Plan(options, run, shards, held_out, sources, description, started, deepspeed, choice, target)


def contradictions(options: RunOptions) -> Iterator[str]:
    """Yields a problem for each pair of options that exclude each other."""
    if options.objective is not None and options.row is not None:
        yield f"row: got {options.row!r} with --objective, but a row sets the objective; give one of them"
    if options.forecast and not options.dry_run:
        yield f"forecast: got {options.forecast} without --dry_run; add it, or leave --forecast out"
    if options.keep_optimizer and not is_run(options.init_from):
        yield (
            f"keep_optimizer: got --init_from {' '.join(options.init_from) or 'nothing'}, expected a run folder, since"
            " only its checkpoints hold the state of Adam; name one, or leave --keep_optimizer out"
        )


def choose_run(options: RunOptions, sources: Donors | None = None) -> RunConfig:
    """Returns the preset's configuration with row or objective, initial models' sizes and overrides applied, in order.

    Raises:
        ConfigError: an option is wrong.
    """
    run = preset(options.preset)
    if options.row is not None:
        run = with_row(run, options.row)
    if options.objective is not None:
        run = with_objective(run, options.objective)
    if sources:
        run = with_sizes_of(run, sources)
    return with_overrides(run, [override for override in options.set if not override.startswith(OVERRIDE)])


def target_of(options: RunOptions) -> Target:
    """Returns this job's processes, or the processes that a dry run plans for.

    Raises:
        ConfigError: the hostfile is wrong.
    """
    if not (options.dry_run and options.hostfile):
        return Target(number_of("WORLD_SIZE", "1"), options.forecast, None)
    slots = read_hostfile(options.hostfile)
    elsewhere = None if slots.keys() <= {"localhost", socket.gethostname()} else "v100"
    return Target(sum(slots.values()), options.forecast or elsewhere, slots)


def choose_file(options: RunOptions, started: RunDescription | None, target: Target) -> Choice:
    """Returns the DeepSpeed file that the options name. `auto` chooses the file by precision: the one that the run was
    started in, else the fastest one on the target.

    Raises:
        ConfigError: the run was started in fp16, and there is no GPU.
    """
    here = choose(target.processes, options.deepspeed_config)
    if options.deepspeed_config != AUTO:
        return here
    if gpu := target.gpu:
        file = file_of("fp16" if gpu == "v100" else "bf16", target.processes)
        return Choice(file, f"what a {gpu.upper()} computes fastest")
    if started is None:
        return here
    if started.precision == "fp16" and not torch.cuda.is_available():
        raise ConfigError(
            f"deepspeed_config: {options.folder} was started in fp16, which needs a GPU; continue it on one, or"
            f" here with --deepspeed_config {here.file.stem}"
        )
    return Choice(file_of(started.precision, target.processes), "as the run was started")


def mismatches(options: RunOptions, run: RunConfig, shards: Shards) -> Iterator[str]:
    """Yields a problem if the sequences are longer than the model's table of positions, if they have too few mask
    copies, or if the optimizer's state in --init_from does not apply to this run.
    """
    length, copies = shards.manifest.seq_length, shards.manifest.mask_copies
    together, needed = copies % COPIES_PER_SHUFFLE or COPIES_PER_SHUFFLE, ceil(round(run.mask_rate / MASK_RATE, 6))
    if needed > together:
        yield (
            f"mask_rate: got {run.mask_rate:g}, which takes {needed} mask copies of one shuffle, but of the {copies} in"
            f" {shards.names[0]} the last shuffle has {together}; use --set mask_rate={together * MASK_RATE:g} at most,"
            f" or build shards with --mask_copies {-(-copies // COPIES_PER_SHUFFLE) * COPIES_PER_SHUFFLE}"
        )
    if run.mask_choice and copies == 1:
        yield (
            f"mask_choice: got {run.mask_choice:g}, but {shards.names[0]} has one mask per sequence; leave it out, or"
            " build shards with --mask_copies 6"
        )
    if length > run.model.max_positions:
        yield (
            f"model.max_positions: got {run.model.max_positions}, but the sequences of {shards.names[0]} are {length}"
            f" long; use --set model.max_positions={length}"
        )
    if options.keep_optimizer and is_run(options.init_from):
        before = read_run(Path(options.init_from[0])).run
        if "gdes" in (run.model.embedding_sharing, before.model.embedding_sharing):
            yield (
                "keep_optimizer: got model.embedding_sharing gdes here or in the run of --init_from, expected es or"
                " nes in both: with gdes, embeddings are sums, and the moments of a sum do not apply to its parts;"
                " leave --keep_optimizer out"
            )
        if before.optim.muon and not run.optim.muon:
            yield (
                "keep_optimizer: got optim.muon true in the run of --init_from and false here, expected it in both:"
                " Muon keeps no second moment of the layers' matrices, by which AdamW would divide; add --set"
                " optim.muon=true, or leave --keep_optimizer out"
            )


def of_deepspeed(options: RunOptions) -> list[str]:
    """Returns the overrides that are DeepSpeed's, not the run's."""
    return [override for override in options.set if override.startswith(OVERRIDE)]


def list_settings(options: RunOptions) -> str:
    """Returns one line per key of `--set`: its value, given the other options, and its meaning.

    Raises:
        ConfigError: an option is wrong.
    """
    if problems := [*contradictions(options)]:
        raise ConfigError(*problems)
    run = choose_run(options, find_sources(options.init_from) if options.init_from else None)
    title = f"KEY, value and meaning with preset {options.preset} and objective {run.objective.name}"
    file = choose(number_of("WORLD_SIZE", "1"), options.deepspeed_config).file
    of_file = settings_tables(DeepSpeedConfig, read(file, of_deepspeed(options)), OVERRIDE)
    return "\n\n".join((title, *settings_tables(RunConfig, run), *of_file))
