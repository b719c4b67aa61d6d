"""What a run needs of its task: a model to train, a loss, scores on the dev set."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from finetune.running.records import Metrics
from finetune.tokens.features import Batch, Features
from pretrain.engine.engine import Engine
from pretrain.model.encoder import ElectraEncoder


class Task(Protocol):
    """What a run knows of its task; `glue.tasks.Task` and `squad.files.SquadVersion` are the two."""

    @property
    def name(self) -> str: ...

    @property
    def dev_splits(self) -> tuple[str, ...]: ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those that are shown; the first chooses the best epoch."""


class Evaluation(NamedTuple):
    """Dev scores after an epoch."""

    metrics: Metrics
    constant: bool
    """Whether every example got one and the same answer."""
    files: Mapping[str, Any]
    """What to keep of the answers: file name -> text, or a value that JSON can hold."""


class UnseenResults(NamedTuple):
    """The finished model on test sets; both empty without any."""

    metrics: Metrics
    """Scores where the labels are known."""
    files: Mapping[str, Any]
    """As in `Evaluation`."""


class Job(Protocol):
    """A task with its data in token ids; `glue.job.GlueJob` and `squad.job.SquadJob` are the two."""

    @property
    def task(self) -> Task:
        """Its name, its dev splits, and the metrics that are shown; the first of each chooses the best epoch."""

    @property
    def train_examples(self) -> int:
        """Examples as the task counts them; features may be more."""

    @property
    def left_out(self) -> Mapping[str, int]:
        """Malformed rows that are not among its examples, by file."""

    @property
    def train(self) -> Features: ...

    @property
    def pad_id(self) -> int: ...

    def build(self, encoder: ElectraEncoder) -> nn.Module:
        """The model: `encoder` as its `electra`, the rest as its `head`."""

    def losses(self, output: Any, batch: Batch) -> Tensor:
        """The loss of each feature of a batch [B], from what the model made of it."""

    def evaluate(self, engine: Engine) -> Evaluation:
        """Scores the dev set. Collective: the ranks share the examples and all know the result."""

    def predict_tests(self, engine: Engine) -> UnseenResults:
        """Predicts whatever test sets the run was given. Collective."""
