"""finetune/squad/answers.py: only spans that can be answers, each text once."""

import itertools
import math

import numpy as np
import pytest
import torch

from finetune.squad.answers import Candidate, best_spans, merge, with_probabilities
from finetune.squad.features import Pieces, Window
from finetune.squad.head import SpanBeams

LENGTH, BEAM = 12, 5
# Paragraph pieces 4..10 stand at input positions 3..9; those up to 7 have more context elsewhere.
WINDOWS = [
    Window(0, range(7), 3, np.ones(7, dtype=bool)),
    Window(0, range(4, 11), 3, np.array([False] * 4 + [True] * 3)),
]


def beams(seed: int = 0) -> SpanBeams:
    torch.manual_seed(seed)
    starts = torch.stack([torch.randperm(LENGTH)[:BEAM] for _ in WINDOWS])
    ends = torch.stack([torch.stack([torch.randperm(LENGTH)[:BEAM] for _ in range(BEAM)]) for _ in WINDOWS])
    return SpanBeams(starts, -torch.rand(2, BEAM), ends, -torch.rand(2, BEAM, BEAM), torch.zeros(2))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n_best", [3, 40])
def test_spans_are_the_best_that_the_rules_allow(seed: int, n_best: int) -> None:
    given = beams(seed)
    spans_BN3 = best_spans(given, WINDOWS, LENGTH, max_answer=3, n_best=n_best)
    assert spans_BN3.shape == (2, n_best, 3)
    for row, window in enumerate(WINDOWS):
        expected = []
        for i, j in itertools.product(range(BEAM), repeat=2):
            first = int(given.start_BK[row, i]) - window.position
            last = int(given.end_BKK[row, i, j]) - window.position
            inside = 0 <= first < 7 and last < 7
            if inside and window.best[first] and first <= last < first + 3:
                score = float(given.start_log_p_BK[row, i].double() + given.end_log_p_BKK[row, i, j].double())
                expected.append((score, first + window.pieces.start, last + window.pieces.start))
        found = [tuple(span) for span in spans_BN3[row].tolist() if span[0] > -math.inf]
        assert len(found) == min(n_best, len(expected))
        for span, wanted in zip(found, sorted(expected, reverse=True), strict=False):
            assert span == pytest.approx(wanted, abs=1e-6)


def test_scores_that_are_no_numbers_are_no_answers() -> None:
    given = beams()._replace(start_log_p_BK=torch.full((2, BEAM), math.nan))
    assert (best_spans(given, WINDOWS, LENGTH, 3, 4)[:, :, 0] == -math.inf).all()


def test_merged_answers_stand_once_under_their_best_score_in_the_texts_own_words() -> None:
    paragraph = "Émile  and Émile"
    pieces = Pieces(np.arange(3), np.array([0, 7, 11]), np.array([5, 10, 16]))
    spans = torch.tensor([[[-1.0, 2, 2], [-2.0, 0, 1]], [[-0.5, 0, 0], [-math.inf, -math.inf, -math.inf]]])
    assert merge(spans, pieces, paragraph, 5) == [Candidate("Émile", -0.5), Candidate("Émile  and", -2.0)]
    assert merge(spans, pieces, paragraph, 1) == [Candidate("Émile", -0.5)]
    assert merge(spans[1:, 1:], pieces, paragraph, 1) == []


def test_probabilities_are_shares_among_the_candidates() -> None:
    written = with_probabilities([Candidate("a", math.log(0.3)), Candidate("b", math.log(0.1))])
    assert [entry["probability"] for entry in written] == pytest.approx([0.75, 0.25])
    assert with_probabilities([]) == []
