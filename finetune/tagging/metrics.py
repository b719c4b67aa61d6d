"""Scores of tagged sentences: seqeval's precision, recall and F1 over entities, or the accuracy over words."""

from collections.abc import Sequence

from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from finetune.tagging.files import TaggingTask

Labels = Sequence[Sequence[str]]
"""The label of each word, by sentence."""


def score(task: TaggingTask, target: Labels, predicted: Labels) -> dict[str, float]:
    """Returns the task's metrics by name."""
    if not task.entities:
        return {"accuracy": float(accuracy_score(target, predicted))}
    measures = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
    return {name: float(measure(target, predicted, zero_division=0)) for name, measure in measures.items()}


def count_matches(task: TaggingTask, target: Labels, predicted: Labels) -> dict[str, list[int]]:
    """Counts each sentence's entities or words: `wanted` in the target, `found` in the prediction, `matched` in both.

    The scores follow from their sums: precision is matched / found, recall and accuracy are matched / wanted.
    """
    spans = get_entities if task.entities else enumerate
    sets = [(set(spans(wanted)), set(spans(found))) for wanted, found in zip(target, predicted, strict=True)]
    return {
        "wanted": [len(wanted) for wanted, _ in sets],
        "found": [len(found) for _, found in sets],
        "matched": [len(wanted & found) for wanted, found in sets],
    }
