"""The paper's fine-tuning numbers for its two model sizes, and the single setting a plain run uses.

Where the paper searches a grid, the default is the grid's value that google-research/electra's
`configure_finetuning.py` uses. There, STS-B (10 epochs) and SQuAD (2) are exceptions; in the paper they are not.
"""

import itertools
from typing import Any, Literal, NamedTuple, TypeVar

from finetune.config import FinetuneConfig, GlueConfig, SquadConfig, TaggingConfig
from foundation.config import ConfigError

ModelSize = Literal["small", "base"]
Settings = TypeVar("Settings", bound=FinetuneConfig)


# The values the paper searched (fine-tuning table); the first of each is the default here.
LEARNING_RATES: dict[ModelSize, tuple[float, ...]] = {"small": (3e-4,), "base": (1e-4, 5e-5, 1.5e-4)}
WEIGHT_DECAYS: dict[ModelSize, tuple[float, ...]] = {"small": (0.0,), "base": (0.01, 0.0)}
EPOCHS, EPOCHS_RTE = (3, 4, 5), (10, 15, 20)

BATCH_SIZE = 32  # paper's fine-tuning table
MAX_LENGTH = 128  # not in the paper; google-research/electra `configure_finetuning.py`
TAGGING_MAX_LENGTH = 256  # as MAX_LENGTH: what google-research/electra gives its tagging task, chunking
SQUAD_MAX_LENGTH, SQUAD_MAX_QUESTION, SQUAD_STRIDE = 512, 64, 128  # as MAX_LENGTH
BASE_HIDDEN_SIZE = 768  # paper's pre-training table; small has 256


class HeadKind(NamedTuple):
    """Sizes and conventions of a head for SQuAD."""

    joint: bool
    """Whether ends are scored given a start, and answerability has a layer. Otherwise one dense layer gives the logits
    of starts and ends, and the fields before `beam` do not apply."""
    hidden_size: int | None
    """Size of the layer between the pair of states and the logit; `None` takes the encoder's."""
    activation: Literal["gelu", "tanh"]
    end_layer_norm: bool
    """LayerNorm before the end's logit."""
    answerable_dropout: bool
    answerable_bias: bool
    """Whether the layer that gives the answerability logit has a bias."""
    beam: int
    """Number of starts tried, and of ends tried for each."""
    n_best: int
    max_answer: int
    """Default of `SquadConfig.max_answer`, as `n_best` is of `SquadConfig.n_best`."""
    initializer_range: float | None
    """Standard deviation of the initial matrices; `None` for TensorFlow's default (Glorot)."""
    last_separator: bool
    """Whether an answer may start or end at the [SEP] after the paragraph."""
    unanswerable_outside: bool
    """Whether a window that misses the answer counts as unanswerable in training."""


HEAD_KINDS = {
    # google-research/electra: `finetune/qa/qa_tasks.py`, `configure_finetuning.py`
    "electra": HeadKind(
        joint=True,
        hidden_size=512,
        activation="gelu",
        end_layer_norm=False,
        answerable_dropout=False,
        answerable_bias=True,
        beam=20,
        n_best=20,
        max_answer=30,
        initializer_range=None,
        last_separator=True,
        unanswerable_outside=False,
    ),
    # zihangdai/xlnet: `function_builder.py`, `run_squad.py`; `xlnet.py` for the initializer
    "xlnet": HeadKind(
        joint=True,
        hidden_size=None,
        activation="tanh",
        end_layer_norm=True,
        answerable_dropout=True,
        answerable_bias=False,
        beam=5,
        n_best=5,
        max_answer=64,
        initializer_range=0.02,
        last_separator=False,
        unanswerable_outside=True,
    ),
    # Hugging Face: `examples/pytorch/question-answering/run_qa.py`
    "hf": HeadKind(
        joint=False,
        hidden_size=None,
        activation="gelu",
        end_layer_norm=False,
        answerable_dropout=False,
        answerable_bias=False,
        beam=20,
        n_best=20,
        max_answer=30,
        initializer_range=0.02,
        last_separator=False,
        unanswerable_outside=True,
    ),
}


def size_of(hidden_size: int) -> ModelSize:
    """Returns the paper's size whose fine-tuning numbers a model takes: base if it is at least as wide, else small."""
    return "base" if hidden_size >= BASE_HIDDEN_SIZE else "small"


def settings_for(task: str, hidden_size: int, max_positions: int, overrides: dict[str, Any]) -> GlueConfig:
    """Returns the paper's settings for a GLUE task and a model of this shape, with `overrides` applied.

    The default length is `MAX_LENGTH`, or all positions of a shorter model.

    Raises:
        ConfigError: an override is out of range, or a length exceeds the model's positions.
    """
    values = common_values(task, hidden_size, min(MAX_LENGTH, max_positions))
    return fitting(GlueConfig.from_values(values | overrides), max_positions)


def tagging_settings_for(task: str, hidden_size: int, max_positions: int, overrides: dict[str, Any]) -> TaggingConfig:
    """Returns the settings for token classification: the paper has none, so they are its settings for GLUE.

    google-research/electra trains its tagging task with them too: 3 epochs, batches of 32, layer decay .8.

    Raises:
        ConfigError: as `settings_for`.
    """
    values = common_values(task, hidden_size, min(TAGGING_MAX_LENGTH, max_positions))
    return fitting(TaggingConfig.from_values(values | overrides), max_positions)


def squad_settings_for(hidden_size: int, max_positions: int, overrides: dict[str, Any]) -> SquadConfig:
    """Returns the settings for SQuAD; for a model of fewer than 512 positions, lengths shrink in proportion.

    Raises:
        ConfigError: as `settings_for`, or a length leaves a paragraph no room beside its question.
    """
    length = min(SQUAD_MAX_LENGTH, max_positions)
    values = common_values("SQuAD", hidden_size, length) | {
        "max_question": SQUAD_MAX_QUESTION * length // SQUAD_MAX_LENGTH,
        "stride": SQUAD_STRIDE * length // SQUAD_MAX_LENGTH,
    }
    if kind := HEAD_KINDS.get(overrides.get("head", "electra")):
        values |= {"n_best": kind.n_best, "max_answer": kind.max_answer}
        values |= {} if kind.joint else {"null_threshold": 0.0}
    settings = fitting(SquadConfig.from_values(values | overrides), max_positions)
    if settings.max_length < settings.max_question + 4:  # three special tokens and one piece of the paragraph
        raise ConfigError(
            f"max_length: got {settings.max_length}, expected at least max_question {settings.max_question} + 4;"
            " change one of them"
        )
    return settings


def common_values(task: str, hidden_size: int, max_length: int) -> dict[str, Any]:
    """Returns the values of the settings that every kind of task has and that no class gives a default."""
    return {"batch_size": BATCH_SIZE, "max_length": max_length, **paper_grid(task, hidden_size)[0]}


def paper_grid(task: str, hidden_size: int) -> list[dict[str, Any]]:
    """Returns every setting that the paper searched for a task and a model of this size, the default first."""
    size, epochs = size_of(hidden_size), EPOCHS_RTE if task == "RTE" else EPOCHS
    return [
        {"learning_rate": rate, "weight_decay": decay, "epochs": count}
        for rate, decay, count in itertools.product(LEARNING_RATES[size], WEIGHT_DECAYS[size], epochs)
    ]


def fitting(settings: Settings, max_positions: int) -> Settings:
    if settings.max_length > max_positions:
        raise ConfigError(
            f"max_length: got {settings.max_length}, expected at most the model's {max_positions} positions;"
            " give a smaller one"
        )
    return settings
