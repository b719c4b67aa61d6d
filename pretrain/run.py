"""Pre-train ELECTRA with learned replacement sampling; the same command again resumes.

deepspeed --hostfile hostfiles/16v100 pretrain/run.py --preset base
deepspeed --num_gpus 2 pretrain/run.py --preset tiny
python pretrain/run.py --dry_run
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from data_prep.command_line import EXIT_BAD_USAGE, HIDDEN, print_problems, run_command
from data_prep.config import MOST, ConfigError, FileName, StrictConfig
from data_prep.defaults import SHARDS
from pretrain.hostfile import read_hostfile, require_launch
from pretrain.launcher import adopt_slurm, number_of

if TYPE_CHECKING:
    from torch.nn import Module

    from pretrain.config import RunConfig
    from pretrain.processes import World
    from pretrain.run_folder import RunDescription
    from pretrain.shards import Shards
    from pretrain.startup import Startup
    from pretrain.train import Training
    from pretrain.watchdog import Watchdog

REPOSITORY = Path(__file__).resolve().parents[1]


class RunOptions(StrictConfig):
    """The command line of a pre-training run."""

    preset: Literal["tiny", "small", "base"] = "base"
    """sizes and schedule, from the paper"""
    data: tuple[Path, ...] = (SHARDS,)
    """shards written by build_shards.py; several mix"""
    data_weights: tuple[float, ...] = ()
    """share of each (by its number of sequences)"""
    output: Path | None = None
    """run folder (runs/PRESET)"""
    objective: Literal["hp_loss", "hp_dist", "electra", "mlm"] | None = None
    """what is trained (hp_loss)"""
    row: str | None = None
    """a row of the paper's tables, such as 'HP_Loss lambda1=10', in place of an objective"""
    init_from: tuple[FileName, ...] = ()
    """start from this generator and discriminator, or one exported folder"""
    deepspeed_config: Path | None = None
    """speed and memory (the preset's, of ds_configs/)"""
    set: tuple[str, ...] = ()
    """overrides, such as optim.lr=2e-4 seed=1"""
    hostfile: Path | None = None
    """the launcher's, for --dry_run; in training it is compared with what was launched"""
    compile: bool = False
    """fuse each layer with torch.compile: for GPUs; half a minute at every start, and slower on a CPU"""
    hang_timeout: float = Field(default=600, ge=1, le=MOST)
    """seconds without progress after which the job ends"""
    dry_run: bool = False
    """check everything, print the plan, start nothing"""
    local_rank: Annotated[int, HIDDEN] = 0
    """given by the launcher; the environment says the same"""


def main(options: RunOptions) -> int:
    adopt_slurm()
    if not options.dry_run:
        require_launch(options.hostfile, launched_processes())
    plan = make_plan(options)
    if options.dry_run:
        from pretrain.dry_run import dry_run

        dry_run(plan, options.hostfile)
        return 0

    from pretrain.processes import leave, start_processes
    from pretrain.rank_log import keep_rank_log
    from pretrain.run_folder import require_free, writing
    from pretrain.startup import Startup
    from pretrain.train import train
    from pretrain.watchdog import Watchdog

    startup = Startup()
    require_free(plan.folder)  # before the ranks meet: the run that goes on there may have the port
    world = start_processes()
    startup.done("meeting")
    lock = take_folder(plan, world)
    with Watchdog(world, options.hang_timeout, plan.folder) as watchdog:
        with writing(plan.folder):
            keep_rank_log(plan.folder, world.rank)
        with lock:
            code = train(build_training(plan, world, watchdog, startup, options.compile))
        return leave(code)


def take_folder(plan: "Plan", world: "World") -> AbstractContextManager[object]:
    """The run folder's lock, which the first rank holds; where it is refused, every rank ends together. Collective."""
    from pretrain.processes import leave
    from pretrain.run_folder import lock_run

    lock: AbstractContextManager[object] = nullcontext()
    problems: tuple[str, ...] = ()
    if world.is_first:
        try:
            lock = lock_run(plan.folder, plan.description)
        except ConfigError as error:
            problems = error.problems
            print_problems(problems)
    if world.share(problems):
        leave(EXIT_BAD_USAGE)
    return lock


class Plan(NamedTuple):
    """A run, checked as far as one process can, before anything is started."""

    run: "RunConfig"
    shards: "Shards"
    held_out: "Shards | None"
    description: "RunDescription"
    deepspeed: dict[str, Any]
    folder: Path
    world_size: int

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
                f" {sequences * self.shards.mean_length:.3g} tokens: {self.shards.mean_length:.1f} a sequence",
                f"processes   {self.world_size}, each {self.deepspeed['train_micro_batch_size_per_gpu']} sequences"
                f" x {self.deepspeed['gradient_accumulation_steps']} micro-batches a step",
            )
        )


def make_plan(options: RunOptions) -> Plan:
    """Reads and checks configuration, data and run folder.

    Raises:
        ConfigError: everything a user can have wrong, before the first process group exists.
    """
    import torch

    from pretrain.deepspeed_config import resolve
    from pretrain.estimates import require_memory
    from pretrain.init_from import find_pair, require_fit
    from pretrain.presets import preset
    from pretrain.run_folder import describe, require_folder, require_same_run
    from pretrain.shards import open_held_out, open_shards

    run = choose_run(options)
    shards = open_shards(*options.data, weights=options.data_weights)
    if shards.manifest.seq_length > run.model.max_positions:
        raise ConfigError(
            f"model.max_positions: got {run.model.max_positions}, but the sequences of {options.data[0]} are"
            f" {shards.manifest.seq_length} long; use --set model.max_positions={shards.manifest.seq_length}"
        )
    world_size = planned_processes(options)
    on_gpu = options.dry_run or torch.cuda.is_available()  # dry: for other machines
    deepspeed = resolve(
        options.deepspeed_config or REPOSITORY / preset(options.preset).deepspeed_config,
        batch_size=run.batch_size,
        world_size=world_size,
        device_type="cuda" if on_gpu else "cpu",
        optim=run.optim,
    )
    micro_batch_size, manifest = deepspeed["train_micro_batch_size_per_gpu"], shards.manifest
    require_memory(run, micro_batch_size, manifest.vocab_size, manifest.seq_length, on_gpu)
    if options.init_from:
        require_fit(find_pair(options.init_from), run.model, shards.manifest.vocab_size, options.data[0] / "tokenizer")
    folder = options.output or Path("runs") / options.preset
    require_folder(folder)
    description = describe(run, shards, options.data_weights, options.init_from)
    require_same_run(folder, description)
    return Plan(run, shards, open_held_out(*options.data), description, deepspeed, folder, world_size)


def launched_processes() -> int:
    return number_of("WORLD_SIZE", "1")


def planned_processes(options: RunOptions) -> int:
    """The processes of the job; a dry run plans for the hostfile's."""
    if options.dry_run and options.hostfile:
        return sum(read_hostfile(options.hostfile).values())
    return launched_processes()


def choose_run(options: RunOptions) -> "RunConfig":
    """The preset, with the objective's or the row's weights, the initial pair's sizes and the overrides applied."""
    from pretrain.config import with_overrides
    from pretrain.init_from import find_pair, with_sizes_of
    from pretrain.presets import preset, with_objective, with_row

    run = preset(options.preset).run
    if options.objective is not None and options.row is not None:
        raise ConfigError(f"row: got {options.row!r} with --objective, which it decides; give one of them")
    if options.row is not None:
        run = with_row(run, options.row)
    if options.objective is not None:
        run = with_objective(run, options.objective)
    if options.init_from:
        run = with_sizes_of(run, find_pair(options.init_from))
    return with_overrides(run, options.set)


def build_training(
    plan: Plan, world: "World", watchdog: "Watchdog", startup: "Startup", compiled: bool = False
) -> "Training":
    """The model under its engine, the data's plan and the run folder, ready to train; says what it is. Collective."""
    from pretrain.data import BatchPlan
    from pretrain.engine import Engine
    from pretrain.models import compile_layers, empty_model, initial_model
    from pretrain.optim import parameter_groups
    from pretrain.run_folder import write_run, writing
    from pretrain.train import Training

    model = initial_model(plan.description) if world.is_first else empty_model(plan.description)
    if world.is_first:
        announce(plan, model, world)
    if compiled:
        compile_layers(model)
    groups = parameter_groups(model, plan.run.optim.weight_decay)
    startup.done("model")
    engine = Engine(model, groups, plan.deepspeed, world)
    write_folder = partial(write_run, plan.folder, plan.description, plan.deepspeed)
    if world.is_first:
        with writing(plan.folder):
            write_folder()
    engine.barrier()
    startup.done("engine")
    batch_plan = BatchPlan(plan.run.batch_size, engine.micro_batch_size, world.world_size, world.rank)
    return Training(
        plan.run, engine, plan.shards, plan.held_out, batch_plan, plan.folder, watchdog, write_folder, startup
    )


def announce(plan: Plan, model: "Module", world: "World") -> None:
    """Prints what is about to run, and what of it was probably not meant."""
    from pretrain.doubts import doubts

    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(plan, flush=True)
    for doubt in doubts(plan, parameters, on_gpus=world.device.type == "cuda"):
        print(f"WARNING: {doubt}", flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main, RunOptions, __doc__))
