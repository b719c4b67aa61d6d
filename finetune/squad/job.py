"""SQuAD as a run needs it, and the runs that a command asks for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from finetune.config import SquadConfig, SquadOptions
from finetune.presets import HEAD_KINDS, paper_grid, squad_settings_for
from finetune.running.job import Evaluation, UnseenResults
from finetune.running.model_folder import open_model
from finetune.running.records import EXAMPLES, RunIdentity
from finetune.running.run_list import run_unfinished
from finetune.squad.answers import Candidate, best_spans, merge, with_probabilities
from finetune.squad.features import Windows, make_windows
from finetune.squad.files import VERSIONS, SquadData, SquadFile, SquadVersion, load_squad, read_squad
from finetune.squad.head import QuestionAnswerer, SpanLogits, span_losses
from finetune.squad.metrics import (
    best_threshold,
    evaluate,
    evaluate_squad1,
    question_scores,
    question_scores_squad1,
)
from finetune.tokens.examples import answers_folder
from finetune.tokens.features import Batch, Features, collate, shares
from foundation.files import require_folder
from pretrain.engine.engine import Engine
from pretrain.model.encoder import ElectraEncoder

EVALUATION_BATCH = 32
"""Windows a rank scores at once: google-research/electra's number; the beams hold 20 states a window and position."""
ANSWER_FILES = ("predictions.json", "null_odds.json", "nbest.json")
"""What is kept of the answers to a file's questions."""


@dataclass(frozen=True)
class SquadJob:
    """The training windows, and the dev questions with theirs; maybe those of a test file too."""

    task: SquadVersion
    settings: SquadConfig
    train: Features
    train_examples: int
    dev_file: SquadFile
    dev: Windows
    pad_id: int
    test: tuple[SquadFile, Windows] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    """None: a malformed entry is refused."""

    def build(self, encoder: ElectraEncoder) -> QuestionAnswerer:
        return QuestionAnswerer(encoder, HEAD_KINDS[self.settings.head])

    def losses(self, output: SpanLogits, batch: Batch) -> torch.Tensor:
        return span_losses(output, batch.target_B)

    def evaluate(self, engine: Engine) -> Evaluation:
        candidates, null_scores = self.answer(self.dev_file, self.dev, engine)
        best = {name: found[0].text if found else "" for name, found in candidates.items()}
        questions = self.dev_file.questions
        if self.task.has_unanswerable:
            scores = evaluate(questions, best, null_scores, self.settings.null_threshold)
            at_best = evaluate(questions, best, null_scores, best_threshold(scores))
            metrics = {"dev": fractions(scores), "dev_best_threshold": fractions(at_best)}
        else:
            scores = evaluate_squad1(questions, best)
            metrics = {"dev": fractions(scores)}
        final = self.final(best, null_scores)
        score_each = question_scores if self.task.has_unanswerable else question_scores_squad1
        examples = {name: list(by_id.values()) for name, by_id in score_each(questions, final).items()}
        files: dict[str, Any] = {
            "metrics.json": scores,
            **self.answer_files(candidates, null_scores),
            EXAMPLES: {"dev": examples | {"answerable": [bool(question.answers) for question in questions]}},
        }
        return Evaluation(metrics, len(set(final.values())) == 1, files)

    def predict_tests(self, engine: Engine) -> UnseenResults:
        if self.test is None:
            return UnseenResults({}, {})
        files = self.answer_files(*self.answer(*self.test, engine))
        return UnseenResults({}, dict(zip(answer_paths(self.test[0]), files.values(), strict=True)))

    def answer_files(
        self, candidates: Mapping[str, list[Candidate]], null_scores: Mapping[str, float]
    ) -> dict[str, Any]:
        """The content of each of `ANSWER_FILES`."""
        best = {name: found[0].text if found else "" for name, found in candidates.items()}
        n_best = {name: with_probabilities(found) for name, found in candidates.items()}
        return dict(zip(ANSWER_FILES, (self.final(best, null_scores), null_scores, n_best), strict=True))

    def final(self, best: Mapping[str, str], null_scores: Mapping[str, float]) -> dict[str, str]:
        """The official predictions: the best text, or none where the threshold says so."""
        threshold = self.settings.null_threshold if self.task.has_unanswerable else math.inf
        return {name: "" if null_scores[name] > threshold else text for name, text in best.items()}

    def answer(
        self, file: SquadFile, windows: Windows, engine: Engine
    ) -> tuple[dict[str, list[Candidate]], dict[str, float]]:
        """Each question's best answers, and the least of its windows' answerability logits; by id, on every rank."""
        spans_WN3, null_W = self.predict(windows, engine)
        windows_of: dict[int, list[int]] = {}
        for place, window in enumerate(windows.windows):
            windows_of.setdefault(window.question, []).append(place)
        candidates, null_scores = {}, {}
        for place, question in enumerate(file.questions):
            own = windows_of[place]
            pieces, paragraph = windows.paragraphs[question.paragraph], file.paragraphs[question.paragraph]
            candidates[question.id] = merge(spans_WN3[own], pieces, paragraph, self.settings.n_best)
            null_scores[question.id] = float(null_W[own].min())
        return candidates, null_scores

    @torch.inference_mode()
    def predict(self, windows: Windows, engine: Engine) -> tuple[torch.Tensor, torch.Tensor]:
        """Best spans and answerability logit of every window, in order, on every rank."""
        world, settings = engine.world, self.settings
        count = len(windows.windows)
        spans_WN3 = torch.zeros(count, settings.n_best, 3, dtype=torch.float64, device=world.device)
        null_W = torch.zeros(count, dtype=torch.float64, device=world.device)
        for own in shares(windows.features, world, EVALUATION_BATCH):
            batch = collate(windows.features, own, self.pad_id, world.device)
            beams = engine.module(batch)
            if len(own):
                chosen = [windows.windows[place] for place in own]
                length = batch.input_ids_BL.shape[1]
                spans_WN3[torch.from_numpy(own)] = best_spans(
                    beams, chosen, length, settings.max_answer, settings.n_best
                )
                null_W[torch.from_numpy(own)] = beams.unanswerable_B.double().nan_to_num()  # a diverged run says 0
        return engine.sum_over_ranks(spans_WN3).cpu(), engine.sum_over_ranks(null_W).cpu()


def make_job(
    version: SquadVersion, data: SquadData, tokenizer: Any, settings: SquadConfig, test: SquadFile | None = None
) -> SquadJob:
    """Cuts the files into windows."""
    return SquadJob(
        version,
        settings,
        make_windows(data.train, tokenizer, settings, training=True).features,
        len(data.train.questions),
        data.dev,
        make_windows(data.dev, tokenizer, settings, training=False),
        tokenizer.pad_token_id,
        (test, make_windows(test, tokenizer, settings, training=False)) if test else None,
    )


def answer_paths(test: SquadFile) -> list[str]:
    """Where, in a run's folder, the answers to a test file's questions go."""
    folder = answers_folder((*test.paragraphs, *test.questions))
    return [f"{folder}/{name}" for name in ANSWER_FILES]


def fractions(scores: dict[str, float]) -> dict[str, float]:
    """The scores among the official metrics, as fractions of 1."""
    return {name: value / 100 for name, value in scores.items() if not name.endswith(("total", "thresh"))}


def run_queue(options: SquadOptions) -> int:
    """Runs what the options ask for and the output folder does not have yet; returns the exit code.

    Raises:
        ConfigError: a wrong model, file or setting; all data is read before the first run.
    """
    require_folder(options.output)
    model = open_model(options.model)
    version = VERSIONS[options.version]
    data = load_squad(version, options.data_dir)
    test = read_squad(options.test_file, labelled=False) if options.test_file else None
    hidden_size, positions = model.config.hidden_size, model.config.max_position_embeddings
    points = paper_grid(version.name, hidden_size) if options.grid else [{}]
    wanted = [squad_settings_for(hidden_size, positions, point | options.overrides()) for point in points]
    first = RunIdentity(
        task=version.name,
        seed=options.seeds[0],
        model_sha256=model.sha256,
        random_weights=options.random_weights,
        data_sha256=data.fingerprint(),
        settings=wanted[0],
    )
    planned = [first.model_copy(update={"settings": settings}) for settings in dict.fromkeys(wanted)]

    def prepare(run: RunIdentity) -> SquadJob:
        assert isinstance(run.settings, SquadConfig)
        return make_job(version, data, model.tokenizer, run.settings, test)

    files = {version.name: answer_paths(test) if test else []}
    return run_unfinished(planned, prepare, files, model, options, options.output)
