"""Predictions for test sets in the format of gluebenchmark.com: one TSV file a set, `index` and `prediction`."""

from collections.abc import Iterable

import numpy as np

from finetune.glue.tasks import Task


def submission(task: Task, indices: Iterable[str], predicted: np.ndarray) -> str:
    """The file's content; class numbers or fractions of the highest score become GLUE's words or scores."""
    lines = (f"{index}\t{_label(task, value)}" for index, value in zip(indices, predicted.tolist(), strict=True))
    return "".join(f"{line}\n" for line in ("index\tprediction", *lines))


def _label(task: Task, value: float) -> str:
    if task.classes:
        return task.classes[int(value)]
    return f"{task.max_score * min(max(value, 0.0), 1.0):.3f}"
