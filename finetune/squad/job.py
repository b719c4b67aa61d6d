"""SQuAD as a job: predicts the best answers to each question, as text of its paragraph, and scores them.

Shape letters: B windows of a batch, W windows of a file, L length, K beam, N best spans.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from finetune.config import SquadConfig, SquadOptions
from finetune.presets import HEAD_KINDS, NULL_THRESHOLD, HeadKind
from finetune.running.job import Batch, Evaluation, HuggingFaceModel, Job, LoadedTask
from finetune.running.records import EXAMPLES
from finetune.squad.features import Pieces, Window, Windows, make_windows
from finetune.squad.files import VERSIONS, SquadData, SquadFile, SquadVersion, load_squad
from finetune.squad.head import QuestionAnswerer, SpanBeams, SpanLogits, span_losses
from finetune.squad.metrics import best_threshold, evaluate, evaluate_squad1, question_scores
from pretrain.huggingface.forms import JOINT_ANSWERER
from pretrain.job.processes import World
from pretrain.model.encoder import Encoder

EVALUATION_BATCH = 32
"""Windows per rank and forward pass (google-research/electra); the beams hold 20 states per window and position."""
EXAMPLE = """import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

FOLDER = "."  # this folder, or its name on the hub
model = AutoModelForQuestionAnswering.from_pretrained(FOLDER{code})
tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=False)
inputs = tokenizer("Who wrote it?", "It was written by Mary Shelley.", return_tensors="pt")
with torch.no_grad():
    output = model(**inputs)
start, end = output.start_top_index[0, 0], output.end_top_index[0, 0]
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]), output.cls_logits)  # positive: no answer"""

Candidates = list[dict[str, Any]]
"""Answers to a question, best first; keys: text, score (log-probability), probability (over these answers)."""


@dataclass(frozen=True, kw_only=True)
class SquadJob(Job):
    """SQuAD as a job: training windows, and the questions and windows of the dev file."""

    task: SquadVersion
    settings: SquadConfig
    dev_file: SquadFile
    dev: Windows

    @property
    def kind(self) -> HeadKind:
        return HEAD_KINDS[self.settings.head]

    def build(self, encoder: Encoder) -> QuestionAnswerer:
        return QuestionAnswerer(encoder, self.kind)

    def losses(self, output: SpanLogits, batch: Batch) -> Tensor:
        return span_losses(output, batch.target_B)

    def evaluate(self, model: nn.Module, world: World) -> Evaluation:
        candidates, null_scores = self.answer(self.dev_file, self.dev, model, world)
        best = {name: found[0]["text"] if found else "" for name, found in candidates.items()}
        questions = self.dev_file.questions
        has_unanswerable = self.task.has_unanswerable
        threshold = NULL_THRESHOLD if has_unanswerable else math.inf
        final = {name: "" if null_scores[name] > threshold else text for name, text in best.items()}
        scores = (
            evaluate(questions, best, null_scores, threshold) if has_unanswerable else evaluate_squad1(questions, best)
        )
        metrics = {"dev": fractions(scores)}
        if has_unanswerable:
            metrics["dev_best_threshold"] = fractions(evaluate(questions, best, null_scores, best_threshold(scores)))
        by_id = question_scores(questions, final, squad1=not has_unanswerable)
        examples = {name: list(values.values()) for name, values in by_id.items()}
        files = {
            "predictions.json": final,
            "null_odds.json": null_scores,
            "nbest.json": candidates,
            "metrics.json": scores,
            EXAMPLES: {"dev": examples | {"answerable": [bool(question.answers) for question in questions]}},
        }
        return Evaluation(metrics, files, constant=len(set(final.values())) == 1)

    def to_hugging_face(self, head: Mapping[str, Tensor]) -> HuggingFaceModel:
        weights = {f"span_head.{name}": weight for name, weight in head.items()}
        fields = ("hidden_size", "activation", "end_layer_norm", "answerable_bias", "beam", "last_separator")
        config = {"span_head": {name: getattr(self.kind, name) for name in fields}}
        return HuggingFaceModel(JOINT_ANSWERER, weights, config, "question-answering", EXAMPLE)

    def answer(
        self, file: SquadFile, windows: Windows, model: nn.Module, world: World
    ) -> tuple[dict[str, Candidates], dict[str, float]]:
        """Returns each question's best answers and its windows' lowest unanswerable logit, both by id, on all ranks."""
        spans_WN3, null_W = self.predict(windows, model, world)
        counts = np.bincount([window.question for window in windows.windows]).tolist()
        candidates, null_scores = {}, {}
        for question, spans, nulls in zip(file.questions, spans_WN3.split(counts), null_W.split(counts), strict=True):
            pieces, paragraph = windows.paragraphs[question.paragraph], file.paragraphs[question.paragraph]
            candidates[question.id] = merge(spans, pieces, paragraph, self.kind.n_best)
            null_scores[question.id] = float(nulls.min())
        return candidates, null_scores

    def predict(self, windows: Windows, model: nn.Module, world: World) -> tuple[Tensor, Tensor]:
        """Returns every window's best spans [W, N, 3] and unanswerable logit [W], on every rank."""
        max_answer, n_best = self.kind.max_answer, self.kind.n_best

        def answer(beams: SpanBeams, batch: Batch, own: np.ndarray) -> Tensor:
            chosen = [windows.windows[place] for place in own]
            spans_BN3 = best_spans(beams, chosen, batch.input_ids_BL.shape[1], max_answer, n_best)
            null_B = beams.unanswerable_B.double().nan_to_num()  # a diverged run says 0
            return torch.cat([spans_BN3.flatten(1), null_B[:, None]], dim=1)

        answers = self.answer_all(windows.features, model, world, EVALUATION_BATCH, 3 * n_best + 1, answer)
        return answers[:, :-1].unflatten(1, (n_best, 3)), answers[:, -1]


def make_job(version: SquadVersion, data: SquadData, tokenizer: Any, settings: SquadConfig) -> SquadJob:
    """Cuts the paragraphs of both files into windows; returns them as a job."""
    return SquadJob(
        task=version,
        settings=settings,
        train=make_windows(data.train, tokenizer, settings, training=True).features,
        train_examples=len(data.train.questions),
        pad_id=tokenizer.pad_token_id,
        dev_file=data.dev,
        dev=make_windows(data.dev, tokenizer, settings, training=False),
    )


def fractions(scores: dict[str, float]) -> dict[str, float]:
    """Returns the official metrics without counts and thresholds, as fractions of 1."""
    return {name: value / 100 for name, value in scores.items() if not name.endswith(("total", "thresh"))}


def best_spans(beams: SpanBeams, windows: Sequence[Window], length: int, max_answer: int, n_best: int) -> Tensor:
    """Returns each window's best spans [B, N, 3]: score, first and last piece. Missing spans have score -inf.

    A span starts at a piece that has most context in this window, ends in the paragraph, and has at most `max_answer`
    pieces.
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
    valid_BKK = (
        opens_BL.to(device).gather(1, beams.start_BK)[:, :, None]
        & (beams.end_BKK >= start_BKK)
        & (beams.end_BKK < start_BKK + max_answer)
        & (beams.end_BKK < stop_B[:, None, None])
    )
    score_BKK = (beams.start_log_p_BK[:, :, None] + beams.end_log_p_BKK).double()
    score_BKK = score_BKK.masked_fill(~valid_BKK | score_BKK.isnan(), -math.inf)

    score_BN, chosen_BN = score_BKK.flatten(1).topk(min(n_best, score_BKK[0].numel()))
    columns = [(place_BKK + shift_B11).flatten(1).gather(1, chosen_BN) for place_BKK in (start_BKK, beams.end_BKK)]
    spans_BN3 = torch.stack([score_BN, *(column.double() for column in columns)], dim=2)
    return torch.nn.functional.pad(spans_BN3, (0, 0, 0, n_best - spans_BN3.shape[1]), value=-math.inf)


def merge(spans: Tensor, pieces: Pieces, paragraph: str, n_best: int) -> Candidates:
    """Returns the best answers among the spans [..., 3] of all windows of a question, without duplicate texts."""
    found = [
        (score, int(first), int(last)) for score, first, last in spans.reshape(-1, 3).tolist() if score > -math.inf
    ]
    scores: dict[str, float] = {}
    for score, first, last in sorted(found, key=lambda span: -span[0]):
        scores.setdefault(pieces.text(paragraph, first, last), score)
    best = list(scores.items())[:n_best]
    weights = [math.exp(score - best[0][1]) for _, score in best]
    return [
        {"text": text, "probability": weight / sum(weights), "score": score}
        for (text, score), weight in zip(best, weights, strict=True)
    ]


def load(options: SquadOptions) -> Iterator[LoadedTask]:
    """Reads the files of the chosen SQuAD release; yields it as a task.

    Raises:
        ConfigError: as `load_squad`.
    """
    version = VERSIONS[options.version]
    data = load_squad(version, options.data_dir)
    yield LoadedTask(version, data.fingerprint(), partial(make_job, version, data))
