"""SQuAD's exact match and F1, equal to those of the official scripts to the last digit.

The definitions are from Rajpurkar et al. 2016 (exact match and F1 after normalization, best over the reference
answers) and 2018 (unanswerable questions, whose right answer is the empty text; thresholds on a null score). Sums are
in the official order and round at every addition, which `sum` of Python 3.12 and later no longer does.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import add

from finetune.squad.files import Question

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

Scores = dict[str, float]
"""Question id -> score in [0, 1]."""


def normalize(text: str) -> str:
    """Lower-cases a text, then removes ASCII punctuation, then articles, then extra spaces."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def f1(reference: str, predicted: str) -> float:
    """Returns the F1 of the words, counted with multiplicity; exact match if a text has no words."""
    wanted, given = normalize(reference).split(), normalize(predicted).split()
    if not wanted or not given:
        return float(wanted == given)
    shared = sum((Counter(wanted) & Counter(given)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(given), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def evaluate(
    questions: Sequence[Question],
    predicted: Mapping[str, str],
    null_scores: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Returns SQuAD 2.0's metrics, in percent and under their official names, of one predicted text per question id.

    Given `null_scores`, the answer to a question whose null score exceeds `threshold` counts as empty, and `best_exact`
    and `best_f1` are the scores at the best threshold for each. (The official default of 1 never empties an answer if
    null scores are probabilities.)

    Raises:
        KeyError: a question without a prediction.
    """
    answerable = {question.id: bool(question.answers) for question in questions}
    raw = question_scores(questions, predicted)
    empty = {name for name, value in (null_scores or {}).items() if value > threshold}
    final = {
        metric: {name: float(not answerable[name]) if name in empty else value for name, value in scores.items()}
        for metric, scores in raw.items()
    }
    result = _summary(final, answerable)
    for prefix, kind in (("HasAns", True), ("NoAns", False)):
        if chosen := [name for name, has_answer in answerable.items() if has_answer is kind]:
            result |= {f"{prefix}_{name}": value for name, value in _summary(final, chosen).items()}
    for metric, scores in raw.items() if null_scores is not None else ():
        best, at = _best_threshold(scores, answerable, predicted, null_scores or {})
        result |= {f"best_{metric}": best, f"best_{metric}_thresh": at}
    return result


def best_threshold(metrics: Mapping[str, float]) -> float:
    """Returns the threshold that gives the `best_f1` in `metrics`, the result of `evaluate`.

    It is -inf if answering nothing is best. The official 0 would be below all probabilities, but not below all logits.
    """
    nothing_answered = 100.0 * metrics.get("NoAns_total", 0) / metrics["total"]
    return -math.inf if metrics["best_f1"] == nothing_answered else metrics["best_f1_thresh"]


def evaluate_squad1(questions: Sequence[Question], predicted: Mapping[str, str]) -> dict[str, float]:
    """Returns SQuAD 1.1's official metrics, in percent, of one predicted text per question id.

    Raises:
        KeyError: a question without a prediction.
    """
    scores = question_scores(questions, predicted, squad1=True)
    return _summary(scores, scores["exact"])


def question_scores(
    questions: Sequence[Question], predicted: Mapping[str, str], *, squad1: bool = False
) -> dict[str, Scores]:
    """Returns exact match and F1 of each question, by metric and id.

    The versions treat reference answers that normalize to the empty text, such as "a", differently. SQuAD 2.0 drops
    them; if none is left, the empty text is right. SQuAD 1.1 uses them for exact match, but not for F1.

    Raises:
        KeyError: a question has no prediction.
    """
    exact, overlap = {}, {}
    for question in questions:
        given = predicted[question.id]
        references = [answer.text for answer in question.answers]
        worded = [text for text in references if normalize(text)] or ([] if squad1 else [""])
        matched = (normalize(text) == normalize(given) for text in (references if squad1 else worded))
        exact[question.id] = float(any(matched))
        overlap[question.id] = max((f1(text, given) for text in worded), default=0.0)
    return {"exact": exact, "f1": overlap}


def _summary(final: Mapping[str, Scores], chosen: Collection[str]) -> dict[str, float]:
    means = {
        name: 100.0 * reduce(add, (scores[identifier] for identifier in chosen), 0.0) / len(chosen)
        for name, scores in final.items()
    }
    return means | {"total": len(chosen)}


def _best_threshold(
    scores: Scores, answerable: Mapping[str, bool], predicted: Mapping[str, str], null_scores: Mapping[str, float]
) -> tuple[float, float]:
    """Returns the best score over all thresholds, in percent, and the lowest threshold that reaches it.

    Starts with no question answered, and adds the answers one by one in the order of their null scores.
    """
    current = best = float(sum(not has_answer for has_answer in answerable.values()))
    threshold = 0.0
    for identifier in sorted(null_scores, key=null_scores.__getitem__):
        if answerable[identifier]:
            current += scores[identifier]
        elif predicted[identifier]:
            current -= 1
        if current > best:
            best, threshold = current, null_scores[identifier]
    return 100.0 * best / len(scores), threshold
