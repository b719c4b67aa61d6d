"""The paper's fine-tuning numbers for its two model sizes, and the single setting a plain run uses.

Where the paper searches a grid, the default is the grid's value that google-research/electra's
`configure_finetuning.py` uses; only STS-B differs there (10 epochs), which the paper counts among the others.
"""

from typing import Any, Literal

from data_prep.config import ConfigError, StrictConfig
from finetune.config import FinetuneConfig

ModelSize = Literal["small", "base"]


class Grid(StrictConfig):
    """The values the paper searched (fine-tuning table); the first of each is the default here."""

    learning_rate: tuple[float, ...]
    weight_decay: tuple[float, ...]
    epochs: tuple[int, ...] = (3, 4, 5)
    epochs_rte: tuple[int, ...] = (10, 15, 20)


GRIDS: dict[ModelSize, Grid] = {
    "small": Grid(learning_rate=(3e-4,), weight_decay=(0.0,)),
    "base": Grid(learning_rate=(1e-4, 5e-5, 1.5e-4), weight_decay=(0.01, 0.0)),
}

BATCH_SIZE = 32  # paper's fine-tuning table
MAX_LENGTH = 128  # not in the paper; google-research/electra `configure_finetuning.py`
BASE_HIDDEN_SIZE = 768  # paper's pre-training table; small has 256


def size_of(hidden_size: int) -> ModelSize:
    """The paper's model size whose fine-tuning numbers a model takes: base from its hidden size upwards."""
    return "base" if hidden_size >= BASE_HIDDEN_SIZE else "small"


def settings_for(task: str, hidden_size: int, max_positions: int, overrides: dict[str, Any]) -> FinetuneConfig:
    """The paper's settings for a task and a model of this shape, with `overrides` laid over them.

    The default length is `MAX_LENGTH` or, on a shorter model, all its positions.

    Raises:
        ConfigError: an override out of range, or a length the model has no positions for.
    """
    grid = GRIDS[size_of(hidden_size)]
    values = {
        "learning_rate": grid.learning_rate[0],
        "weight_decay": grid.weight_decay[0],
        "epochs": (grid.epochs_rte if task == "RTE" else grid.epochs)[0],
        "batch_size": BATCH_SIZE,
        "max_length": min(MAX_LENGTH, max_positions),
    }
    settings = FinetuneConfig.from_values(values | overrides)
    if settings.max_length > max_positions:
        raise ConfigError(
            f"max_length: got {settings.max_length}, expected at most the model's {max_positions} positions"
        )
    return settings
