"""SQuAD's exact match and F1, equal to the official evaluations to the last digit.

The definitions are from Rajpurkar et al. 2016 (exact match and F1 after normalization, best over the reference
answers) and 2018 (a question without answer is answered by the empty text; thresholds on a null score). Sums run in
the official order and round at every addition, which `sum` of Python 3.12 and later no longer does.
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
    """Returns the text lower-cased, without ASCII punctuation and articles, with single spaces; in this order."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def f1(reference: str, predicted: str) -> float:
    """F1: harmonic mean of precision and recall of the words, counted with multiplicity; without words, exact match."""
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

    Given `null_scores`, a question whose score lies above `threshold` counts as answered by the empty text, and
    `best_exact` and `best_f1` are the scores under the thresholds that suit each best. (1 is the official default,
    which leaves probabilities as they are.)

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
    """Returns the threshold at which `evaluate` reaches the `best_f1` that it reported.

    If answering nothing is best, the official threshold is 0: below every probability, but not below every logit.
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

    The versions differ in reference answers that normalize to nothing, such as "a". SQuAD 2.0 drops them; where none
    is left, the empty text is right. SQuAD 1.1's exact match takes them as they are, its F1 gives them nothing.

    Raises:
        KeyError: a question without a prediction.
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

    Starting from "nothing is answered", answers are added one by one in the order of their null scores.
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
