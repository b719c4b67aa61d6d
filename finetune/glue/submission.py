"""Predictions for test sets in the format of gluebenchmark.com: one TSV file a set, `index` and `prediction`."""

from collections.abc import Iterable

import numpy as np

from finetune.glue.tasks import Task


def submission(task: Task, indices: Iterable[str], predicted: np.ndarray) -> str:
    """The file's content; class numbers or fractions of the highest score become GLUE's words or scores."""
    values = predicted.tolist()
    if task.classes:
        labels = [task.classes[int(value)] for value in values]
    else:
        labels = [f"{task.max_score * min(max(value, 0.0), 1.0):.3f}" for value in values]
    lines = (f"{index}\t{label}" for index, label in zip(indices, labels, strict=True))
    return "".join(f"{line}\n" for line in ("index\tprediction", *lines))
