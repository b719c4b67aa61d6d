"""The paper's fine-tuning numbers for its two model sizes, and the single setting a plain run uses.

Where the paper searches a grid, the default is the grid's value that google-research/electra's
`configure_finetuning.py` uses. That file trains STS-B for 10 epochs and SQuAD for 2; the paper does not.
"""

import itertools
from typing import Any, Literal, NamedTuple, TypeVar

from electra_sampler.foundation.config import ConfigError
from finetune.config import FinetuneConfig, GlueConfig, SquadConfig, TaggingConfig

ModelSize = Literal["small", "base"]
TaskConfig = TypeVar("TaskConfig", bound=FinetuneConfig)


# The values the paper searched (fine-tuning table); the first of each is the default here.
LEARNING_RATES: dict[ModelSize, tuple[float, ...]] = {"small": (3e-4,), "base": (1e-4, 5e-5, 1.5e-4)}
WEIGHT_DECAYS: dict[ModelSize, tuple[float, ...]] = {"small": (0.0,), "base": (0.01, 0.0)}
EPOCHS, EPOCHS_RTE = (3, 4, 5), (10, 15, 20)

BATCH_SIZE = 32  # paper's fine-tuning table
# Not in the paper; google-research/electra `configure_finetuning.py`, for tagging its task of chunking.
MAX_LENGTHS: dict[type[FinetuneConfig], int] = {GlueConfig: 128, TaggingConfig: 256, SquadConfig: 512}
SQUAD_MAX_QUESTION, SQUAD_STRIDE = 64, 128
NULL_THRESHOLD = -2.75
"""A question whose unanswerable logit exceeds this gets no answer (google-research/electra)."""
BASE_HIDDEN_SIZE = 768  # paper's pre-training table; small has 256


class HeadKind(NamedTuple):
    """Sizes and conventions of a head for SQuAD, which scores starts, ends given a start, and answerability."""

    hidden_size: int | None
    """Size of the hidden layers; `None` means the encoder's hidden size."""
    activation: Literal["gelu", "tanh"]
    end_layer_norm: bool
    """Whether LayerNorm comes before the layer that scores ends."""
    answerable_dropout: bool
    answerable_bias: bool
    """Whether the layer for the unanswerable logit has a bias."""
    beam: int
    """Number of starts tried, and of ends tried for each start."""
    n_best: int
    """Answers kept per window and per question."""
    max_answer: int
    """Maximum word pieces in an answer."""
    initializer_range: float | None
    """Standard deviation of the initial weights; `None` means TensorFlow's default (Glorot)."""
    last_separator: bool
    """Whether an answer may start or end at the [SEP] after the paragraph."""
    unanswerable_outside: bool
    """Whether a window that misses the answer counts as unanswerable in training."""


HEAD_KINDS = {
    # google-research/electra: `finetune/qa/qa_tasks.py`, `configure_finetuning.py`
    "electra": HeadKind(
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
}


def size_of(hidden_size: int) -> ModelSize:
    """Returns which of the paper's sizes sets a model's defaults: base if it is at least as wide, else small."""
    return "base" if hidden_size >= BASE_HIDDEN_SIZE else "small"


def settings_for(
    kind: type[TaskConfig], task: str, hidden_size: int, max_positions: int, overrides: dict[str, Any]
) -> TaskConfig:
    """Returns the paper's settings for a task and a model of this shape, with `overrides` applied.

    The default length is that of `MAX_LENGTHS` or, if lower, the model's number of positions; SQuAD's other lengths
    shrink in proportion. Token classification, which the paper lacks, takes GLUE's settings, as in
    google-research/electra.

    Raises:
        ConfigError: an override is out of range, `max_length` exceeds the model's positions, or leaves no room for
            the paragraph after SQuAD's longest question.
    """
    longest = MAX_LENGTHS[kind]
    length = min(longest, max_positions)
    values = {"batch_size": BATCH_SIZE, "max_length": length, **paper_grid(task, hidden_size)[0]}
    if kind is SquadConfig:
        values |= {"max_question": SQUAD_MAX_QUESTION * length // longest, "stride": SQUAD_STRIDE * length // longest}
    settings = kind.from_values(values | overrides)
    if settings.max_length > max_positions:
        raise ConfigError(
            f"max_length: got {settings.max_length}, expected at most the model's {max_positions} positions;"
            " give a smaller one"
        )
    if isinstance(settings, SquadConfig) and settings.max_length < settings.max_question + 4:
        raise ConfigError(  # three special tokens and one piece of the paragraph
            f"max_length: got {settings.max_length}, expected at least max_question {settings.max_question} + 4;"
            " change one of them"
        )
    return settings


def paper_grid(task: str, hidden_size: int) -> list[dict[str, Any]]:
    """Returns every setting that the paper searched for a task and a model of this size, the default first."""
    size, epochs = size_of(hidden_size), EPOCHS_RTE if task == "RTE" else EPOCHS
    return [
        {"learning_rate": rate, "weight_decay": decay, "epochs": count}
        for rate, decay, count in itertools.product(LEARNING_RATES[size], WEIGHT_DECAYS[size], epochs)
    ]
