"""The plan of a run: reads and checks everything that one process can check before anything starts."""

from pathlib import Path
from typing import NamedTuple

import torch

from foundation.config import ConfigError, counted
from foundation.files import ROOT, require_folder
from foundation.settings import settings_tables
from pretrain.config import RunConfig, with_overrides
from pretrain.data.remote import CACHE, GB, local_folder
from pretrain.data.shards import Shards, open_held_out, open_shards
from pretrain.engine.deepspeed_config import OVERRIDE, EngineConfig, read, resolve
from pretrain.engine.deepspeed_keys import DeepSpeedConfig
from pretrain.huggingface.init_from import require_fit, with_sizes_of
from pretrain.job.hostfile import read_hostfile
from pretrain.job.launcher import number_of
from pretrain.method.objectives import objective_class
from pretrain.presets import preset, with_objective, with_row
from pretrain.training.estimates import require_memory
from pretrain.training.models import find_sources, is_run
from pretrain.training.options import RunOptions
from pretrain.training.run_folder import RunDescription, describe, has_checkpoint, read_run, require_same_run


class Plan(NamedTuple):
    """A run whose configuration, data and run folder were checked by one process before anything starts."""

    run: RunConfig
    shards: Shards
    held_out: Shards | None
    description: RunDescription
    deepspeed: EngineConfig
    folder: Path
    world_size: int
    log_to: tuple[str, ...]
    graphs: bool = False

    def __str__(self) -> str:
        sequences = self.run.batch_size * self.run.optim.steps
        return "\n".join(
            (
                f"run folder  {self.folder}",
                f"objective   {self.run.objective}",
                f"model       {self.run.model}",
                *(
                    f"data        {folder}: {size:,} sequences, {share:.1%} of the samples,"
                    f" {sequences * share / size:,.2f} epochs"
                    for folder, size, share in self.shards.mixture
                ),
                f"training    {self.run.optim.steps:,} steps of {self.run.batch_size} sequences,"
                f" {sequences * self.shards.mean_length:.3g} tokens: {self.shards.mean_length:.1f} per sequence",
                f"processes   {self.world_size}, each {counted(self.deepspeed.micro_batch_size, 'sequence')}"
                f" x {counted(self.deepspeed.accumulation_steps, 'micro-batch', 'micro-batches')} per step",
            )
        )


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
    world_size = number_of("WORLD_SIZE", "1")
    if options.dry_run and options.hostfile:
        world_size = sum(read_hostfile(options.hostfile).values())
    on_gpu = options.dry_run or torch.cuda.is_available()  # a dry run plans for other machines
    deepspeed = resolve(
        _deepspeed(options),
        batch_size=run.batch_size,
        world_size=world_size,
        device_type="cuda" if on_gpu else "cpu",
        optim=run.optim,
    )
    if run.optim.discriminator_clipping is not None and deepspeed.stage:
        raise ConfigError(
            f"optim.discriminator_clipping: got {run.optim.discriminator_clipping} at ZeRO stage {deepspeed.stage},"
            " where DeepSpeed clips all gradients together; use --deepspeed_config ds_configs/zero0_fp32.json, or leave"
            " it out"
        )
    if options.graphs:
        require_graphs(run, deepspeed, on_gpu)
    manifest = shards.manifest
    require_memory(run, deepspeed.micro_batch_size, manifest.vocab_size, manifest.seq_length, on_gpu)
    folder = options.output or Path("runs") / options.preset
    require_generator(options, run, folder, manifest.vocab_size)
    if options.init_from:
        require_fit(find_sources(options.init_from), run, manifest.vocab_size, shards.folders[0] / "tokenizer")
    require_folder(folder)
    description = describe(
        run, shards, options.data_weights, options.init_from, options.keep_optimizer, options.generator_from
    )
    require_same_run(folder, description)
    held_out = open_held_out(*options.data)
    return Plan(run, shards, held_out, description, deepspeed, folder, world_size, options.log_to, options.graphs)


def require_graphs(run: RunConfig, deepspeed: EngineConfig, on_gpu: bool) -> None:
    """Checks that CUDA graphs can replay the run's micro-batches.

    Raises:
        ConfigError: names everything that prevents it.
    """
    name = run.objective.name
    reasons = {
        "without a GPU": not on_gpu,
        "with ZeRO stage 3, which moves the weights": deepspeed.stage == 3,
        "with activation_checkpointing, which reads the random state on the host": deepspeed.recomputes,
        "with flops_profiler, which runs at one step only": deepspeed.json.get("flops_profiler", {}).get("enabled"),
        f"with objective {name}, whose temperature changes at every step": objective_class(name).uses_progress,
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise ConfigError(*(f"graphs: true {reason}; leave it out" for reason in found))


def require_generator(options: RunOptions, run: RunConfig, folder: Path, vocab_size: int) -> None:
    """Checks that a frozen generator is given if the objective has one, and that it fits; a run with a checkpoint needs
    its folder no more.

    Raises:
        ConfigError: it is missing, or not wanted, or differs from the run's model or vocabulary.
    """
    name = run.objective.name
    frozen = objective_class(name).frozen_generator
    if options.generator_from is None:
        if frozen:
            raise ConfigError(
                f"generator_from: not given, but the objective {name} needs a trained generator; name a run folder or"
                " an export with --generator_from FOLDER"
            )
        return
    if not frozen:
        raise ConfigError(
            f"generator_from: got {options.generator_from!r}, but the objective {name} trains its own generator; leave"
            " it out, or use --objective fast_electra"
        )
    if options.init_from:
        raise ConfigError(f"init_from: got {' '.join(options.init_from)} with --generator_from; give one of them")
    if not has_checkpoint(folder):
        sources = find_sources((options.generator_from,))._replace(discriminator=None)
        if sources.generator is None:
            raise ConfigError(f"generator_from: {options.generator_from} holds no generator; name one that does")
        require_fit(sources, run, vocab_size, local_folder(options.data[0]) / "tokenizer", "generator_from")


def list_settings(options: RunOptions) -> str:
    """Returns every key of `--set` with its value under the other options and its meaning, one line each.

    Raises:
        ConfigError: an option is wrong.
    """
    run = choose_run(options)
    title = f"KEY, value and meaning with preset {options.preset} and objective {run.objective.name}"
    of_deepspeed = settings_tables(DeepSpeedConfig, _deepspeed(options), OVERRIDE)
    return "\n\n".join((title, *settings_tables(RunConfig, run), *of_deepspeed))


def _deepspeed(options: RunOptions) -> DeepSpeedConfig:
    return read(
        options.deepspeed_config or ROOT / preset(options.preset).deepspeed_config,
        [override for override in options.set if override.startswith(OVERRIDE)],
    )


def choose_run(options: RunOptions) -> RunConfig:
    """Returns the preset's configuration with objective or row, initial models' sizes and overrides applied, in order.

    Raises:
        ConfigError: an option is wrong.
    """
    run = preset(options.preset).run
    if options.objective is not None and options.row is not None:
        raise ConfigError(f"row: got {options.row!r} with --objective, but a row sets the objective; give one of them")
    if options.row is not None:
        run = with_row(run, options.row)
    if options.objective is not None:
        run = with_objective(run, options.objective)
    if options.init_from:
        run = with_sizes_of(run, find_sources(options.init_from))
    return with_overrides(run, [override for override in options.set if not override.startswith(OVERRIDE)])
