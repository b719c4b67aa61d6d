"""The command line of a pre-training run, separate from its plan so that `--help` imports nothing slow."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from data_prep.defaults import SHARDS
from electra_sampler.foundation.command_line import HIDDEN, Group, Metavar
from electra_sampler.foundation.config import MOST, StrictConfig
from pretrain.method.registry import GivenObjective


class RunOptions(StrictConfig):
    """The command line of a pre-training run."""

    preset: Annotated[
        Literal["tiny", "small", "base", "modern_tiny", "modern_17m", "modern_32m", "modern_68m", "modern_base"],
        Group("the run"),
    ] = "base"
    """sizes and schedule; small and base are the paper's"""
    objective: GivenObjective | None = None
    """hp_loss, hp_dist, electra, mlm, or a sampler of your own: FILE.py:CLASS or package.module:CLASS (hp_loss)"""
    row: str | None = None
    """a row of the paper's tables or of ours, such as 'HP_Loss lambda1=10', instead of an objective"""
    init_from: tuple[str, ...] = ()
    """start from a generator and a discriminator, one of them, an export, a BERT, an MPNet, or a run folder"""
    keep_optimizer: bool = False
    """with --init_from RUN: start with the state of its Adam too, as in a second phase on longer sequences"""
    set: Annotated[tuple[str, ...], Metavar("KEY=VALUE")] = ()
    """override settings, such as optim.lr=2e-4 seed=1 deepspeed.zero_optimization.stage=2"""
    list_settings: bool = False
    """print every KEY of --set with its value and meaning"""
    data: Annotated[tuple[Path, ...], Group("data and output")] = (SHARDS,)
    """folders of shards from build_shards.py, or their s3:// or https:// URLs; several are mixed"""
    data_weights: tuple[float, ...] = ()
    """relative sampling weight of each folder (its number of sequences)"""
    cache_gb: float = Field(default=100, gt=0, le=MOST)
    """size of the local cache for shards behind URLs"""
    output: Path | None = None
    """run folder (runs/PRESET)"""
    log_to: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)
    """where to log curves; each writer named gets all of them"""
    deepspeed_config: Annotated[Path, Group("machines")] = Path("auto")
    """DeepSpeed file; auto: bf16 where the hardware has it, fp16 on older GPUs, else fp32"""
    hostfile: Path | None = None
    """the launcher's hostfile: --dry_run checks its hosts; training compares it with the started processes"""
    compile: bool = False
    """fuse each layer with torch.compile, for GPUs; adds half a minute to every start, slower on a CPU"""
    graphs: Literal["auto", "on", "off"] = "auto"
    """replay each micro-batch as CUDA graphs, at ZeRO stages 0 and 1; auto: on GPUs, without --compile"""
    hang_timeout: float = Field(default=600, ge=1, le=MOST)
    """seconds without progress before the job is ended"""
    dry_run: bool = False
    """check everything, print the plan, forecast the time on this machine, start nothing"""
    forecast: Literal["v100", "a100", "h100"] | None = None
    """with --dry_run: plan for this GPU instead (with --hostfile: v100)"""
    local_rank: Annotated[int, HIDDEN] = 0
    """passed by the launcher; unused, as the environment has it too"""

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.output or Path("runs") / self.preset

    def problems(self) -> Iterator[str]:
        """Yields a problem for each pair of options that exclude each other."""
        if self.objective is not None and self.row is not None:
            yield f"row: got {self.row!r} with --objective, but a row sets the objective; give one of them"
        if self.forecast and not self.dry_run:
            yield f"forecast: got {self.forecast} without --dry_run; add it, or leave --forecast out"

    @field_validator("row")
    @classmethod
    def _is_loaded(cls, row: str | None) -> str | None:
        from pretrain.presets import load_row  # imports torch

        return row and load_row(row)

    @field_validator("log_to")
    @classmethod
    def _is_installed(cls, log_to: tuple[str, ...]) -> tuple[str, ...]:
        for name in log_to:
            if not find_spec(name):
                raise ValueError(f"got {name}, which is not installed; pip install 'electra-sampler[{name}]'")
        return log_to
