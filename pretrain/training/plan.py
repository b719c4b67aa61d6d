"""The plan of a run: reads and checks everything that one process can check before anything starts."""

import socket
from pathlib import Path
from typing import NamedTuple

import torch

from foundation.config import ConfigError, counted
from foundation.files import require_folder
from foundation.settings import settings_tables
from pretrain.config import RunConfig, with_overrides
from pretrain.data.remote import CACHE, GB
from pretrain.data.shards import Shards, open_held_out, open_shards
from pretrain.engine.deepspeed_config import OVERRIDE, EngineConfig, read, resolve
from pretrain.engine.deepspeed_keys import DeepSpeedConfig
from pretrain.engine.hardware import AUTO, Choice, choose, file_of, name_of_hardware
from pretrain.huggingface.init_from import require_fit, with_sizes_of
from pretrain.job.hosts import read_hostfile
from pretrain.job.launcher import number_of
from pretrain.presets import preset, with_objective, with_row
from pretrain.training.estimates import flops_per_token, require_memory
from pretrain.training.models import find_sources, is_run
from pretrain.training.options import RunOptions
from pretrain.training.run_folder import (
    DESCRIPTION,
    RunDescription,
    describe,
    read_run,
    require_same_run,
)


class Plan(NamedTuple):
    """A run whose configuration, data and run folder were checked by one process before anything starts."""

    run: RunConfig
    shards: Shards
    held_out: Shards | None
    description: RunDescription
    deepspeed: EngineConfig
    choice: Choice
    """The file that `deepspeed` was read from, and why."""
    unasked: bool
    """A new run whose file the hardware decides: the user has not said that it should run on this machine."""
    folder: Path
    world_size: int
    log_to: tuple[str, ...]
    graphs: bool = False
    assumed_gpu: str | None = None
    """The GPU that a dry run plans for, by its name in `machines.GPUS`; `None` for this machine."""

    def __str__(self) -> str:
        """The plan in five lines; every setting is in the run folder's run.json."""
        sequences, length = self.run.batch_size * self.run.optim.steps, self.shards.mean_length
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
                f"processes   {self.world_size}, each {counted(self.deepspeed.micro_batch_size, 'sequence')}"
                f" x {counted(self.deepspeed.accumulation_steps, 'micro-batch', 'micro-batches')} per step",
                f"precision   {self.deepspeed.precision} ({self.choice.file.stem}): {self.choice.reason}",
            )
        )

    @property
    def settings(self) -> str:
        """The settings of model, objective and optimizer in full."""
        run = self.run
        return f"model       {run.model}\nobjective   {run.objective}\noptimizer   {run.optim}"

    def seconds(self, flops: float, steps: int) -> float:
        """Forecast of so many steps' time, at this many FLOP/s over all processes."""
        return self.flops_per_step * steps / flops

    @property
    def flops_per_step(self) -> float:
        """Floating-point operations of a step, without those on padding."""
        manifest = self.shards.manifest
        per_token = flops_per_token(self.run.model, self.run.objective, manifest.vocab_size, manifest.seq_length)
        return per_token * self.run.batch_size * self.shards.mean_length


def make_plan(options: RunOptions) -> Plan:
    """Reads and checks configuration, data and run folder, before any process group exists.

    Raises:
        ConfigError: a mistake in the options, the data or the run folder.
    """
    if options.keep_optimizer and not is_run(options.init_from):
        raise ConfigError(
            f"keep_optimizer: got --init_from {' '.join(options.init_from) or 'nothing'}, expected a run folder, since"
            " only its checkpoints hold the state of Adam; name one, or leave --keep_optimizer out"
        )
    run = choose_run(options)
    if options.keep_optimizer and "gdes" in (
        run.model.embedding_sharing,
        read_run(Path(options.init_from[0])).run.model.embedding_sharing,
    ):
        raise ConfigError(
            "keep_optimizer: got model.embedding_sharing gdes here or in the run of --init_from, expected es or nes in"
            " both: a sum's moments are not those of its parts; leave --keep_optimizer out"
        )
    CACHE.limit = round(options.cache_gb * GB)
    shards = open_shards(*options.data, weights=options.data_weights, window=run.shards_per_window)
    shards.require_room()
    if shards.manifest.seq_length > run.model.max_positions:
        raise ConfigError(
            f"model.max_positions: got {run.model.max_positions}, but the sequences of {shards.names[0]} are"
            f" {shards.manifest.seq_length} long; use --set model.max_positions={shards.manifest.seq_length}"
        )
    if options.forecast and not options.dry_run:
        raise ConfigError(f"forecast: got {options.forecast} without --dry_run; add it, or leave --forecast out")
    world_size, gpu = number_of("WORLD_SIZE", "1"), options.forecast
    if options.dry_run and options.hostfile:
        slots = read_hostfile(options.hostfile)
        world_size = sum(slots.values())
        gpu = gpu or (None if slots.keys() <= {"localhost", socket.gethostname()} else "v100")
    on_gpu = gpu is not None or torch.cuda.is_available()
    folder = options.output or Path("runs") / options.preset
    choice = choose_file(options, folder, world_size, gpu)
    deepspeed = resolve(
        read(choice.file, _of_deepspeed(options)),
        batch_size=run.batch_size,
        world_size=world_size,
        device_type="cuda" if on_gpu else "cpu",
        optim=run.optim,
    )
    if options.graphs:
        require_graphs(run, deepspeed, on_gpu)
    manifest = shards.manifest
    require_memory(run, deepspeed.micro_batch_size, manifest.vocab_size, manifest.seq_length, on_gpu)
    if options.init_from:
        require_fit(find_sources(options.init_from), run, manifest.vocab_size, shards.folders[0] / "tokenizer")
    require_folder(folder)
    description = describe(
        run,
        shards,
        options.data_weights,
        options.init_from,
        options.keep_optimizer,
        precision=deepspeed.precision,
        hardware=name_of_hardware(),
    )
    require_same_run(folder, description)
    return Plan(
        run=run,
        shards=shards,
        held_out=open_held_out(*map(Path, shards.names)),
        description=description,
        deepspeed=deepspeed,
        choice=choice,
        unasked=options.deepspeed_config == AUTO and not (folder / DESCRIPTION).is_file(),
        folder=folder,
        world_size=world_size,
        log_to=options.log_to,
        graphs=options.graphs,
        assumed_gpu=gpu,
    )


def choose_file(options: RunOptions, folder: Path, world_size: int, gpu: str | None) -> Choice:
    """Returns the DeepSpeed file that the options name, or for `auto` the one of the precision that the run in `folder`
    was started in, else of the fastest precision of this machine or of `gpu`.

    Raises:
        ConfigError: the run in `folder` cannot be read, or it was started in fp16, and there is no GPU.
    """
    here = choose(world_size, options.deepspeed_config)
    if options.deepspeed_config != AUTO:
        return here
    if gpu:
        return Choice(
            file_of("fp16" if gpu == "v100" else "bf16", world_size), f"what a {gpu.upper()} computes fastest"
        )
    if not (folder / DESCRIPTION).is_file():
        return here
    started = read_run(folder).precision
    if started == "fp16" and not torch.cuda.is_available():
        raise ConfigError(
            f"deepspeed_config: {folder} was started in fp16, which needs a GPU; continue it on one, or here with"
            f" --deepspeed_config {here.file.stem}"
        )
    return Choice(file_of(started, world_size), "as the run was started")


def require_graphs(run: RunConfig, deepspeed: EngineConfig, on_gpu: bool) -> None:
    """Checks that CUDA graphs can replay the run's micro-batches.

    Raises:
        ConfigError: names everything that prevents it.
    """
    reasons = {
        "without a GPU": not on_gpu,
        "with ZeRO stage 3, which moves the weights": deepspeed.stage == 3,
        "with activation_checkpointing, which reads the random state on the host": deepspeed.recomputes,
        "with flops_profiler, which runs at one step only": deepspeed.json.get("flops_profiler", {}).get("enabled"),
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise ConfigError(*(f"graphs: true {reason}; leave it out" for reason in found))


def list_settings(options: RunOptions) -> str:
    """Returns every key of `--set` with its value under the other options and its meaning, one line each.

    Raises:
        ConfigError: an option is wrong.
    """
    run = choose_run(options)
    title = f"KEY, value and meaning with preset {options.preset} and objective {run.objective.name}"
    file = choose(number_of("WORLD_SIZE", "1"), options.deepspeed_config).file
    of_deepspeed = settings_tables(DeepSpeedConfig, read(file, _of_deepspeed(options)), OVERRIDE)
    return "\n\n".join((title, *settings_tables(RunConfig, run), *of_deepspeed))


def _of_deepspeed(options: RunOptions) -> list[str]:
    """Returns the overrides that are DeepSpeed's, not the run's."""
    return [override for override in options.set if override.startswith(OVERRIDE)]


def choose_run(options: RunOptions) -> RunConfig:
    """Returns the preset's configuration with objective or row, initial models' sizes and overrides applied, in order.

    Raises:
        ConfigError: an option is wrong.
    """
    run = preset(options.preset)
    if options.objective is not None and options.row is not None:
        raise ConfigError(f"row: got {options.row!r} with --objective, but a row sets the objective; give one of them")
    if options.row is not None:
        run = with_row(run, options.row)
    if options.objective is not None:
        run = with_objective(run, options.objective)
    if options.init_from:
        run = with_sizes_of(run, find_sources(options.init_from))
    return with_overrides(run, [override for override in options.set if not override.startswith(OVERRIDE)])
