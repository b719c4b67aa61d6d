"""The plan of a run, which one process checks before anything starts: what is trained, and how it is trained here.

`make_plan` reads the parts that the options name, each once, when it is first asked for; then it checks whether they
fit each other, in any order.
"""

import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch

from electra_sampler.foundation.config import ConfigError, counted, refuse
from electra_sampler.foundation.files import require_folder
from electra_sampler.foundation.settings import settings_tables
from pretrain.config import RunConfig, with_overrides
from pretrain.data.shards import Shards, open_held_out, open_shards
from pretrain.engine.deepspeed_config import OVERRIDE, EngineConfig, read, resolve
from pretrain.engine.deepspeed_keys import DeepSpeedConfig
from pretrain.engine.graphs import unreplayable
from pretrain.engine.hardware import AUTO, ChosenFile, choose, file_of, name_of_hardware
from pretrain.huggingface.init_from import Donors, misfits, with_sizes_of
from pretrain.job.launcher import number_of
from pretrain.job.processes import World
from pretrain.planning.estimates import GPUS, Machine, Sizes, step_seconds, this_machine, too_large
from pretrain.planning.hosts import Target, read_hostfile
from pretrain.planning.options import RunOptions
from pretrain.presets import preset, with_objective, with_row
from pretrain.runs.folder import RunDescription, describe, differences, find_run, read_run
from pretrain.runs.models import find_donors, is_run


class Placement(NamedTuple):
    """How a run is trained here. Beside its options, nothing in it changes what is trained, but for rounding."""

    options: RunOptions
    target: Target
    deepspeed: EngineConfig
    file: ChosenFile
    """The file that `deepspeed` was read from, and why it was chosen."""
    graphs: bool
    """CUDA graphs replay the micro-batches; `auto`: wherever they can, but not compiled layers."""


class Plan(NamedTuple):
    """A checked run."""

    description: RunDescription
    """The run to train, as in the folder's run.json."""
    here: Placement
    shards: Shards
    held_out: Shards | None
    donors: Donors | None
    """The models that --init_from names."""
    started: RunDescription | None
    """The description of the run that is already in the folder."""

    @property
    def run(self) -> RunConfig:
        return self.description.run

    @property
    def folder(self) -> Path:
        return self.here.options.folder

    def __str__(self) -> str:
        """The plan in five lines; every setting is in the run folder's run.json."""
        sequences, length = self.run.batch_size * self.run.optim.steps, self.shards.mixture.mean_length
        deepspeed, file = self.here.deepspeed, self.here.file
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
                f"processes   {self.here.target.processes}, each {counted(deepspeed.micro_batch_size, 'sequence')}"
                f" x {counted(deepspeed.accumulation_steps, 'micro-batch', 'micro-batches')} per step",
                f"precision   {deepspeed.precision} ({file.path.stem}): {file.reason}",
            )
        )

    def seconds(self, machine: Machine, steps: int) -> float:
        """Returns the forecast seconds of `steps` steps."""
        length, rounds = self.shards.mixture.mean_length, self.here.deepspeed.accumulation_steps
        return steps * step_seconds(self.sizes, machine, length, rounds, self.here.graphs)

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.run, self.shards.manifest.vocab_size, self.shards.manifest.seq_length)

    def machine(self, world: World | None = None) -> Machine:
        """Returns the machine of this plan: the GPUs that a dry run assumes, else this machine. Collective.

        Raises:
            ConfigError: there is no published speed of that GPU in the run's precision.
        """
        (processes, gpu, _), precision = self.here.target, self.here.deepspeed.precision
        if not gpu:
            return this_machine(self.sizes, precision, processes, world)
        if found := GPUS.get((gpu, precision)):
            flops = found.flops * processes * min(1.0, self.run.model.hidden_size / found.width)
            return found._replace(name=f"{processes} {found.name}", flops=flops)
        raise ConfigError(
            f"forecast: got {gpu} with {precision}, for which no speed is published; choose another --forecast or"
            " --deepspeed_config"
        )


@dataclass
class Given:
    """The parts of a plan that a run's options name."""

    options: RunOptions

    @cached_property
    def donors(self) -> Donors | None:
        """The models that --init_from names."""
        names = self.options.init_from
        if self.options.keep_optimizer and not is_run(names):
            raise ConfigError(
                f"keep_optimizer: got --init_from {' '.join(names) or 'nothing'}, expected a run folder, since"
                " only its checkpoints hold the state of Adam; name one, or leave --keep_optimizer out"
            )
        return find_donors(names) if names else None

    @cached_property
    def run(self) -> RunConfig:
        """The preset with row or objective, the donors' sizes and overrides applied, in this order."""
        run, options = preset(self.options.preset), self.options
        if options.row is not None:
            run = with_row(run, options.row)
        if options.objective is not None:
            run = with_objective(run, options.objective)
        donors = None
        with suppress(ConfigError):  # the donors' own: the settings are checked all the same
            donors = self.donors
        if donors:
            run = with_sizes_of(run, donors)
        return with_overrides(run, [override for override in options.set if not override.startswith(OVERRIDE)])

    @cached_property
    def shards(self) -> Shards:
        window = 0
        with suppress(ConfigError):  # the run's own: the data is checked all the same
            window = self.run.shards_per_window
        return open_shards(*self.options.data, weights=self.options.data_weights, window=window)

    @cached_property
    def started(self) -> RunDescription | None:
        """The description of the run that is already in the folder, which may be missing."""
        require_folder(self.options.folder)
        return find_run(self.options.folder)

    @cached_property
    def target(self) -> Target:
        """The processes of this job, or those that a dry run plans for."""
        options = self.options
        if not (options.dry_run and options.hostfile):
            return Target(number_of("WORLD_SIZE", "1"), options.forecast, None)
        slots = read_hostfile(options.hostfile)
        elsewhere = None if slots.keys() <= {"localhost", socket.gethostname()} else "v100"
        return Target(sum(slots.values()), options.forecast or elsewhere, slots)

    @cached_property
    def file(self) -> ChosenFile:
        """The DeepSpeed file that the options name. `auto` chooses it by precision: the one that the run was started
        in, else the fastest one on the target.
        """
        (processes, gpu, _), named, started = self.target, self.options.deepspeed_config, None
        here = choose(processes, named)
        if named != AUTO:
            return here
        if gpu:
            file = file_of("fp16" if gpu == "v100" else "bf16", processes)
            return ChosenFile(file, f"what a {gpu.upper()} computes fastest")
        with suppress(ConfigError):  # the folder's own: the file is checked all the same
            started = self.started
        if started is None:
            return here
        if started.precision == "fp16" and not torch.cuda.is_available():
            raise ConfigError(
                f"deepspeed_config: {self.options.folder} was started in fp16, which needs a GPU; continue it on one,"
                f" or here with --deepspeed_config {here.path.stem}"
            )
        return ChosenFile(file_of(started.precision, processes), "as the run was started")

    @cached_property
    def deepspeed_values(self) -> DeepSpeedConfig:
        """The values of the DeepSpeed file with their overrides, as the user gave them."""
        return read(self.file.path, [override for override in self.options.set if override.startswith(OVERRIDE)])

    @cached_property
    def deepspeed(self) -> EngineConfig:
        """These values for the run and its processes."""
        return resolve(
            self.deepspeed_values,
            batch_size=self.run.batch_size,
            world_size=self.target.processes,
            device_type="cuda" if self.target.on_gpu else "cpu",
            clipping=self.run.optim.gradient_clipping,
        )

    @cached_property
    def description(self) -> RunDescription:
        """The run to train, as run.json will hold it."""
        return describe(
            self.run,
            self.shards,
            self.options.data_weights,
            self.options.init_from,
            self.options.keep_optimizer,
            precision=self.deepspeed.precision,
            hardware=name_of_hardware(),
        )

    def problems(self, *names: str) -> list[str]:
        """Returns contradictions of the options, and why parts of these names cannot be read."""
        found = dict.fromkeys(self.options.problems())
        for name in names:
            try:
                getattr(self, name)
            except ConfigError as error:
                found |= dict.fromkeys(error.problems)  # once, although a part that needs this one fails with it
        return [*found]


def unfit(given: Given) -> Iterator[Iterable[str]]:
    """Yields the checks of parts that can all be read, each by the owner of what it checks; any order will do."""
    options, run, shards, deepspeed = given.options, given.run, given.shards, given.deepspeed
    yield shards.problems(options.cache_gb)
    yield run.misfits(shards.manifest, shards.names[0])
    if given.donors:
        yield misfits(given.donors, run, shards.manifest.vocab_size, shards.folders[0] / "tokenizer")
    if options.keep_optimizer:
        yield run.optimizer_misfits(read_run(Path(options.init_from[0])).run)
    if options.graphs == "on":
        yield (f"graphs: got on {reason}; leave it out" for reason in unreplayable(deepspeed, given.target.on_gpu))
    sizes = Sizes(run, shards.manifest.vocab_size, shards.manifest.seq_length)
    yield too_large(sizes, deepspeed.micro_batch_size, given.target.on_gpu)
    yield differences(options.folder, given.started, given.description)


def make_plan(options: RunOptions) -> Plan:
    """Reads and checks configuration, data and run folder, before any process group exists.

    Raises:
        ConfigError: every mistake in the options, the data and the run folder; if these can be read, every misfit.
    """
    given = Given(options)
    refuse(given.problems("donors", "run", "shards", "started", "deepspeed"))
    refuse(chain.from_iterable(unfit(given)))
    replayable = not any(unreplayable(given.deepspeed, given.target.on_gpu))
    here = Placement(
        options,
        given.target,
        given.deepspeed,
        given.file,
        graphs=options.graphs == "on" or (options.graphs == "auto" and not options.compile and replayable),
    )
    return Plan(
        given.description,
        here,
        given.shards,
        held_out=open_held_out(*map(Path, given.shards.names)),
        donors=given.donors,
        started=given.started,
    )


def list_settings(options: RunOptions) -> str:
    """Returns one line per key of `--set`: its value, given the other options, and its meaning.

    Raises:
        ConfigError: an option is wrong.
    """
    given = Given(options)
    refuse(given.problems("donors", "run", "deepspeed_values"))
    title = f"KEY, value and meaning with preset {options.preset} and objective {given.run.objective.name}"
    of_file = settings_tables(DeepSpeedConfig, given.deepspeed_values, OVERRIDE)
    return "\n\n".join((title, *settings_tables(RunConfig, given.run), *of_file))
