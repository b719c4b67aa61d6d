"""The command line of a pre-training run, apart from its plan: `--help` needs nothing that takes long to import."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from data_prep.defaults import SHARDS
from foundation.command_line import HIDDEN, Group, Metavar
from foundation.config import MOST, FileName, StrictConfig
from pretrain.method.objectives import OBJECTIVES


class RunOptions(StrictConfig):
    """The command line of a pre-training run."""

    preset: Annotated[Literal["tiny", "small", "base"], Group("the run")] = "base"
    """sizes and schedule, from the paper"""
    objective: Literal[tuple(OBJECTIVES)] | None = None  # type: ignore[valid-type]
    """what is trained (hp_loss)"""
    row: str | None = None
    """a row of the paper's tables, such as 'HP_Loss lambda1=10', in place of an objective"""
    init_from: tuple[FileName, ...] = ()
    """start from this generator and discriminator, or one exported folder"""
    set: Annotated[tuple[str, ...], Metavar("KEY=VALUE")] = ()
    """settings in place of the preset's, such as optim.lr=2e-4 seed=1 deepspeed.zero_optimization.stage=2"""
    list_settings: bool = False
    """print every KEY of --set, its value and its meaning"""
    data: Annotated[tuple[Path, ...], Group("data and output")] = (SHARDS,)
    """shards written by build_shards.py; several mix"""
    data_weights: tuple[float, ...] = ()
    """share of each (by its number of sequences)"""
    output: Path | None = None
    """run folder (runs/PRESET)"""
    log_to: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ("tensorboard",)
    """what draws curves; of several each draws all"""
    deepspeed_config: Annotated[Path | None, Group("machines")] = None
    """speed and memory (the preset's, of ds_configs/)"""
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

    @field_validator("log_to")
    @classmethod
    def _is_installed(cls, log_to: tuple[str, ...]) -> tuple[str, ...]:
        for name in log_to:
            if not find_spec(name):
                raise ValueError(f"got {name}, which is not installed; pip install 'electra-sampler[{name}]'")
        return log_to
