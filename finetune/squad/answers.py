"""Beams of every window -> each question's best answers, in the words of its paragraph.

Shape letters: B windows of a batch, W windows of a file, L length, K beam, N best spans.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from finetune.squad.features import Pieces, Window
from finetune.squad.head import SpanBeams


class Candidate(NamedTuple):
    """An answer and its score, the log-probability of its start and of its end added up."""

    text: str
    score: float


def best_spans(beams: SpanBeams, windows: Sequence[Window], length: int, max_answer: int, n_best: int) -> Tensor:
    """The best spans of each window [B, N, 3]: score, first and last piece of the paragraph; -inf where there are none.

    A span starts where its window gives most context, ends in the paragraph, and has at most `max_answer` pieces.
    """
    device = beams.start_BK.device
    opens_BL = torch.zeros(len(windows), length, dtype=torch.bool)
    for place, window in enumerate(windows):
        opens_BL[place, window.position : window.position + len(window.pieces)] = torch.from_numpy(window.best)
    stop_B = torch.tensor([window.position + len(window.pieces) for window in windows], device=device)
    shift_B11 = torch.tensor([window.pieces.start - window.position for window in windows], device=device)[
        :, None, None
    ]

    start_BKK = beams.start_BK[:, :, None].expand_as(beams.end_BKK)
    valid_BKK = opens_BL.to(device).gather(1, beams.start_BK)[:, :, None]
    valid_BKK = valid_BKK & (beams.end_BKK >= start_BKK) & (beams.end_BKK < start_BKK + max_answer)
    valid_BKK = valid_BKK & (beams.end_BKK < stop_B[:, None, None])
    score_BKK = (beams.start_log_p_BK[:, :, None] + beams.end_log_p_BKK).double()
    score_BKK = score_BKK.masked_fill(~valid_BKK | score_BKK.isnan(), -math.inf)

    score_BN, chosen_BN = score_BKK.flatten(1).topk(min(n_best, score_BKK[0].numel()))
    columns = [(place_BKK + shift_B11).flatten(1).gather(1, chosen_BN) for place_BKK in (start_BKK, beams.end_BKK)]
    spans_BN3 = torch.stack([score_BN, *(column.double() for column in columns)], dim=2)
    missing = n_best - spans_BN3.shape[1]
    return torch.nn.functional.pad(spans_BN3, (0, 0, 0, missing), value=-math.inf)


def merge(spans: Tensor, pieces: Pieces, paragraph: str, n_best: int) -> list[Candidate]:
    """The best answers among the spans [..., 3] of all windows of a question, each text once, best first."""
    found = [
        (score, int(first), int(last)) for score, first, last in spans.reshape(-1, 3).tolist() if score > -math.inf
    ]
    best: dict[str, float] = {}
    for score, first, last in sorted(found, key=lambda span: -span[0]):
        best.setdefault(pieces.text(paragraph, first, last), score)
    return [Candidate(text, score) for text, score in list(best.items())[:n_best]]


def with_probabilities(candidates: Sequence[Candidate]) -> list[dict[str, str | float]]:
    """The candidates as they are written down, each with its share among them."""
    weights = [math.exp(candidate.score - candidates[0].score) for candidate in candidates]
    return [
        {"text": candidate.text, "probability": weight / sum(weights), "score": candidate.score}
        for candidate, weight in zip(candidates, weights, strict=True)
    ]
