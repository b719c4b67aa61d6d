"""SQuAD as a run needs it."""

from dataclasses import dataclass
from typing import Any

import torch

from finetune.config import SquadConfig
from finetune.features import Batch, Features, collate, shares
from finetune.job import Evaluation
from finetune.presets import HEAD_KINDS
from finetune.squad_answers import Candidate, best_spans, merge, with_probabilities
from finetune.squad_features import Windows, make_windows
from finetune.squad_head import QuestionAnswerer, SpanLogits, span_losses
from finetune.squad_metrics import evaluate, evaluate_squad1
from finetune.tasks.squad import SquadData, SquadFile, SquadVersion
from pretrain.encoder import ElectraEncoder
from pretrain.engine import Engine

EVALUATION_BATCH = 32
"""Windows a rank scores at once: google-research/electra's number; the beams hold 20 states a window and position."""


@dataclass(frozen=True)
class SquadJob:
    """The training windows, and the dev questions with theirs."""

    task: SquadVersion
    settings: SquadConfig
    train: Features
    train_examples: int
    dev_file: SquadFile
    dev: Windows
    pad_id: int

    def build(self, encoder: ElectraEncoder) -> QuestionAnswerer:
        return QuestionAnswerer(encoder, HEAD_KINDS[self.settings.head])

    def losses(self, output: SpanLogits, batch: Batch) -> torch.Tensor:
        return span_losses(output, batch.target_B)

    def evaluate(self, engine: Engine) -> Evaluation:
        candidates, null_scores = self.answer(engine)
        best = {name: found[0].text if found else "" for name, found in candidates.items()}
        questions, threshold = self.dev_file.questions, self.settings.null_threshold
        final = best
        if self.task.has_unanswerable:
            final = {name: "" if null_scores[name] > threshold else text for name, text in best.items()}
            scores = evaluate(questions, best, null_scores, threshold)
            at_best = evaluate(questions, best, null_scores, scores["best_f1_thresh"])
            metrics = {"dev": fractions(scores), "dev_best_threshold": fractions(at_best)}
        else:
            scores = evaluate_squad1(questions, best)
            metrics = {"dev": fractions(scores)}
        files: dict[str, Any] = {
            "metrics.json": scores,
            "predictions.json": final,
            "null_odds.json": null_scores,
            "nbest.json": {name: with_probabilities(found) for name, found in candidates.items()},
        }
        return Evaluation(metrics, len(set(final.values())) == 1, files)

    def answer(self, engine: Engine) -> tuple[dict[str, list[Candidate]], dict[str, float]]:
        """Each question's best answers, and the least of its windows' answerability logits; by id, on every rank."""
        spans_WN3, null_W = self.predict(engine)
        windows_of: dict[int, list[int]] = {}
        for place, window in enumerate(self.dev.windows):
            windows_of.setdefault(window.question, []).append(place)
        candidates, null_scores = {}, {}
        for place, question in enumerate(self.dev_file.questions):
            own = windows_of[place]
            pieces, paragraph = self.dev.paragraphs[question.paragraph], self.dev_file.paragraphs[question.paragraph]
            candidates[question.id] = merge(spans_WN3[own], pieces, paragraph, self.settings.n_best)
            null_scores[question.id] = float(null_W[own].min())
        return candidates, null_scores

    @torch.inference_mode()
    def predict(self, engine: Engine) -> tuple[torch.Tensor, torch.Tensor]:
        """Best spans and answerability logit of every dev window, in order, on every rank."""
        world, settings = engine.world, self.settings
        count = len(self.dev.windows)
        spans_WN3 = torch.zeros(count, settings.n_best, 3, dtype=torch.float64, device=world.device)
        null_W = torch.zeros(count, dtype=torch.float64, device=world.device)
        for own in shares(self.dev.features, world, EVALUATION_BATCH):
            batch = collate(self.dev.features, own, self.pad_id, world.device)
            beams = engine.module(batch)
            if len(own):
                windows = [self.dev.windows[place] for place in own]
                length = batch.input_ids_BL.shape[1]
                spans_WN3[torch.from_numpy(own)] = best_spans(
                    beams, windows, length, settings.max_answer, settings.n_best
                )
                null_W[torch.from_numpy(own)] = beams.unanswerable_B.double().nan_to_num()  # a diverged run says 0
        return engine.sum_over_ranks(spans_WN3).cpu(), engine.sum_over_ranks(null_W).cpu()


def make_job(version: SquadVersion, data: SquadData, tokenizer: Any, settings: SquadConfig) -> SquadJob:
    """Cuts both files into windows.

    Raises:
        ConfigError: as `make_windows`.
    """
    return SquadJob(
        version,
        settings,
        make_windows(data.train, tokenizer, settings, training=True).features,
        len(data.train.questions),
        data.dev,
        make_windows(data.dev, tokenizer, settings, training=False),
        tokenizer.pad_token_id,
    )


def fractions(scores: dict[str, float]) -> dict[str, float]:
    """The scores among the official metrics, as fractions of 1."""
    return {name: value / 100 for name, value in scores.items() if not name.endswith(("total", "thresh"))}
