"""finetune/squad/job.py: from windows to answers and scores, with a model that can memorize them."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertTokenizerFast

from finetune.config import SquadConfig
from finetune.presets import settings_for
from finetune.running.train import Run
from finetune.squad.features import Pieces, Window
from finetune.squad.files import VERSIONS, SquadData, SquadFile, load_squad, read_squad
from finetune.squad.head import SpanBeams
from finetune.squad.job import SquadJob, best_spans, make_job, merge
from finetune.squad.metrics import evaluate, evaluate_squad1
from pretrain.huggingface.folders import load_tokenizer
from pretrain.huggingface.stored import read_stored
from pretrain.job.processes import World
from pretrain.model.encoder import Encoder
from tests.deepspeed_values import values_of
from tests.finetune.conftest import FP32, small_encoder

BY_HEART = {"dropout": 0.0, "attention_dropout": 0.0, "layer_decay": 1.0, "batch_size": 16}


@pytest.fixture(scope="module")
def data(squad_folder: Path) -> SquadData:
    return load_squad(VERSIONS["2.0"], squad_folder)


def small_job(model: Path, data: SquadData, version: str = "2.0", **changes: Any) -> SquadJob:
    settings = settings_for(SquadConfig, "SQuAD 2.0", 32, 32, {"max_question": 8} | BY_HEART | changes)
    return make_job(VERSIONS[version], data, load_tokenizer(model), settings)


def learn(job: SquadJob, encoder: Encoder, world: World) -> Run:
    """Trains all epochs without evaluations."""
    run = Run(encoder, job, job.settings, 1, FP32, world)
    for epoch in range(job.settings.epochs):
        run.train_epoch(epoch)
    run.engine.module.eval()
    return run


def encoder_of(stock_model: Path) -> Encoder:
    torch.manual_seed(0)
    return read_stored(stock_model).encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.mark.parametrize(
    ("head", "epochs"),
    [("electra", 50), ("xlnet", 200)],  # XLNet's initial matrices are so small that a width of 32 learns slowly
)
def test_a_tiny_model_memorizes_sixteen_questions(
    head: str, epochs: int, stock_model: Path, data: SquadData, world: World
) -> None:
    job = small_job(stock_model, data, head=head, epochs=epochs, learning_rate=1e-2)
    scores = job.evaluate(learn(job, encoder_of(stock_model), world).engine.module, world).metrics["dev"]
    assert scores["exact"] > 0.9, scores


@pytest.mark.long
def test_a_tiny_model_memorizes_fifty_real_questions(
    shared_data: Path, real_tokenizer: BertTokenizerFast, world: World
) -> None:
    file = read_squad(shared_data / "squad" / "article_split" / "train-v2.0.json")
    few = SquadFile(file.paragraphs, file.questions[:50])
    settings = settings_for(SquadConfig, "SQuAD 2.0", 64, 128, BY_HEART | {"epochs": 60, "learning_rate": 1e-3})
    job = make_job(VERSIONS["2.0"], SquadData(few, few), real_tokenizer, settings)
    assert len(job.train.targets) > 2 * job.train_examples == 100  # several windows per question
    sizes = {"embedding_size": 64, "hidden_size": 64, "intermediate_size": 256, "max_position_embeddings": 128}
    encoder = small_encoder(vocab_size=len(real_tokenizer), **sizes)
    scores = job.evaluate(learn(job, encoder, world).engine.module, world).metrics["dev"]
    assert scores["exact"] > 0.9, scores


@pytest.fixture(scope="module")
def barely_trained(stock_model: Path, data: SquadData, world: World) -> tuple[SquadJob, Run]:
    """A model that answers some questions wrong, with several windows per question."""
    job = small_job(stock_model, data, max_length=20, stride=4, epochs=12, learning_rate=1e-2)
    assert len(job.dev.windows) > 2 * len(data.dev.questions)
    return job, learn(job, encoder_of(stock_model), world)


def test_scores_follow_from_the_saved_files(barely_trained: tuple[SquadJob, Run], data: SquadData) -> None:
    job, run = barely_trained
    metrics, files, constant = job.evaluate(run.engine.module, run.world)
    best = {name: answers[0]["text"] for name, answers in files["nbest.json"].items()}
    nulls, official = files["null_odds.json"], files["metrics.json"]
    assert official == evaluate(data.dev.questions, best, nulls, -2.75)
    assert official.items() >= evaluate(data.dev.questions, files["predictions.json"]).items()
    assert metrics["dev"]["f1"] == official["f1"] / 100
    at_best = evaluate(data.dev.questions, best, nulls, official["best_f1_thresh"])
    assert metrics["dev_best_threshold"]["HasAns_exact"] == at_best["HasAns_exact"] / 100
    assert metrics["dev_best_threshold"]["f1"] == pytest.approx(official["best_f1"] / 100)
    examples = files["examples.json"]["dev"]
    assert {name: np.mean(examples[name]) for name in ("exact", "f1")} == pytest.approx(
        {name: metrics["dev"][name] for name in ("exact", "f1")}
    )
    assert examples["answerable"] == [bool(question.answers) for question in data.dev.questions]
    assert constant == (len(set(files["predictions.json"].values())) == 1)
    assert json.loads(json.dumps(files)) == files


def test_answers_are_stretches_of_their_paragraphs_best_first(
    barely_trained: tuple[SquadJob, Run], data: SquadData
) -> None:
    job, run = barely_trained
    candidates, _ = job.answer(data.dev, job.dev, run.engine.module, run.world)
    for question in data.dev.questions:
        found = candidates[question.id]
        assert 1 <= len(found) <= job.kind.n_best
        texts, scores = ([answer[key] for answer in found] for key in ("text", "score"))
        assert len(set(texts)) == len(found)
        assert scores == sorted(scores, reverse=True)
        assert all(text in data.dev.paragraphs[question.paragraph] for text in texts)
        assert all(len(text.split()) <= 30 for text in texts)


def test_ranks_divide_the_windows(barely_trained: tuple[SquadJob, Run]) -> None:
    job, run = barely_trained
    spans_WN3, null_W = job.predict(job.dev, run.engine.module, run.world)
    worlds = [World(rank, 3, torch.device("cpu")) for rank in range(3)]
    # In a group of one process each part stays as it is.
    parts = [job.predict(job.dev, run.engine.module, world) for world in worlds]
    torch.testing.assert_close(sum(spans for spans, _ in parts), spans_WN3, atol=1e-5, rtol=0)
    torch.testing.assert_close(sum(nulls for _, nulls in parts), null_W, atol=1e-5, rtol=0)


def test_zero_3_learns_and_answers_the_same(
    barely_trained: tuple[SquadJob, Run], stock_model: Path, world: World
) -> None:
    job = barely_trained[0]
    settings = job.settings.model_copy(update={"epochs": 2})
    runs = []
    for stage in (0, 3):
        run = Run(encoder_of(stock_model), job, settings, 1, values_of(f"zero{stage}_fp32"), world)
        losses = [run.train_epoch(0), run.train_epoch(1)]
        run.engine.module.eval()
        runs.append((losses, job.predict(job.dev, run.engine.module, world)[1]))
    assert runs[1][0] == pytest.approx(runs[0][0], abs=1e-5)
    torch.testing.assert_close(runs[1][1], runs[0][1], atol=1e-4, rtol=0)


def test_squad_1_always_answers(stock_model: Path, squad_folder: Path, world: World) -> None:
    answered = load_squad(VERSIONS["1.1"], squad_folder)
    job = small_job(stock_model, answered, "1.1", epochs=1, learning_rate=1e-3)
    evaluation = job.evaluate(learn(job, encoder_of(stock_model), world).engine.module, world)
    assert evaluation.metrics.keys() == {"dev"}
    given = evaluation.files["predictions.json"]
    assert evaluation.files["metrics.json"] == evaluate_squad1(answered.dev.questions, given)
    assert all(given[question.id] for question in answered.dev.questions)


def test_a_diverged_model_still_has_scores(stock_model: Path, data: SquadData, world: World) -> None:
    job = small_job(stock_model, data, epochs=2, learning_rate=1e30)
    outcome = Run(encoder_of(stock_model), job, job.settings, 1, FP32, world).train()
    assert (outcome.collapsed, outcome.last["dev"]["NoAns_exact"]) == ("non-finite loss", 1)


LENGTH, BEAM = 12, 5
# Paragraph pieces 4..10 are at input positions 3..9; those up to 7 have more context in another window.
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
def test_spans_are_the_best_allowed_by_the_rules(seed: int, n_best: int) -> None:
    given = beams(seed)
    spans_BN3 = best_spans(given, WINDOWS, LENGTH, max_answer=3, n_best=n_best)
    assert spans_BN3.shape == (2, n_best, 3)
    for row, window in enumerate(WINDOWS):
        expected = []
        for i, j in itertools.product(range(BEAM), repeat=2):
            first = int(given.start_BK[row, i]) - window.position
            last = int(given.end_BKK[row, i, j]) - window.position
            if 0 <= first < 7 and window.best[first] and first <= last < min(7, first + 3):
                score = float(given.start_log_p_BK[row, i].double() + given.end_log_p_BKK[row, i, j].double())
                expected.append((score, first + window.pieces.start, last + window.pieces.start))
        found = [tuple(span) for span in spans_BN3[row].tolist() if span[0] > -math.inf]
        assert len(found) == min(n_best, len(expected))
        for span, wanted in zip(found, sorted(expected, reverse=True), strict=False):
            assert span == pytest.approx(wanted, abs=1e-6)


def test_nan_scores_give_no_answers() -> None:
    given = beams()._replace(start_log_p_BK=torch.full((2, BEAM), math.nan))
    assert (best_spans(given, WINDOWS, LENGTH, 3, 4)[:, :, 0] == -math.inf).all()


def test_equal_answers_are_merged_with_their_best_score_and_the_texts_wording() -> None:
    paragraph = "Émile  and Émile"
    pieces = Pieces(np.arange(3), np.array([0, 7, 11]), np.array([5, 10, 16]))
    spans = torch.tensor([[[-1.0, 2, 2], [-2.0, 0, 1]], [[-0.5, 0, 0], [-math.inf, -math.inf, -math.inf]]])
    found = merge(spans, pieces, paragraph, 5)
    assert [(answer["text"], answer["score"]) for answer in found] == [("Émile", -0.5), ("Émile  and", -2.0)]
    assert [answer["text"] for answer in merge(spans, pieces, paragraph, 1)] == ["Émile"]
    assert merge(spans[1:, 1:], pieces, paragraph, 1) == []


def test_probabilities_are_normalized_over_the_candidates() -> None:
    pieces = Pieces(np.arange(2), np.array([0, 2]), np.array([1, 3]))
    spans = torch.tensor([[math.log(0.3), 0, 0], [math.log(0.1), 1, 1]], dtype=torch.float64)
    found = merge(spans, pieces, "a b", 5)
    assert [answer["text"] for answer in found] == ["a", "b"]
    assert [answer["probability"] for answer in found] == pytest.approx([0.75, 0.25])
