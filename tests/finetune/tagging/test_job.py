"""finetune/tagging/job.py: a loss per word, and scores that seqeval gives to the predictions that are written."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import seqeval.metrics
import torch
import torch.nn.functional as F

from finetune.config import TaggingConfig
from finetune.presets import settings_for
from finetune.running.train import Run
from finetune.tagging.files import TASKS, Sentence, TaggingData, load_tagging
from finetune.tagging.job import TaggingJob, make_job
from finetune.tokens import IGNORED, collate
from pretrain.huggingface.folders import load_tokenizer
from pretrain.huggingface.stored import read_stored
from pretrain.job.processes import start_processes
from tests.conftest import REPOSITORY

SETTINGS = settings_for(TaggingConfig, "NER", 32, 32, {"batch_size": 8, "max_length": 8})
CONFIG = REPOSITORY / "ds_configs" / "zero0_fp32.json"


def make_run(stock_model: Path, job: TaggingJob) -> Run:
    made = Run(read_stored(stock_model).encoder(), job, SETTINGS, 1, CONFIG, start_processes())
    made.engine.module.eval()
    return made


def test_the_losses_of_all_features_have_the_mean_of_the_loss_per_word(stock_model: Path, tagging_folder: Path) -> None:
    data = load_tagging(TASKS["NER"], tagging_folder)
    job = make_job(TASKS["NER"], data, load_tokenizer(stock_model), SETTINGS)
    size = len(job.train.targets)
    assert size > len(data.train)  # some sentences are cut
    batch = collate(job.train, range(size), 0, torch.device("cpu"))
    logits_BLC = torch.randn(*batch.target_B.shape, len(job.classes), generator=torch.manual_seed(0))
    words = np.concatenate([row[row != IGNORED] for row in job.train.targets])
    assert len(words) == sum(len(sentence.words) for sentence in data.train)
    expected = F.cross_entropy(logits_BLC[batch.target_B != IGNORED], torch.tensor(words))
    torch.testing.assert_close(job.losses(logits_BLC, batch).mean(), expected)


def test_padding_changes_no_loss(stock_model: Path) -> None:
    sentences = [Sentence(("good",), ("B-loc",)), Sentence(("bad", "good", "bad", "bad"), ("O", "B-loc", "O", "O"))]
    job = make_job(TASKS["NER"], TaggingData(sentences, sentences, []), load_tokenizer(stock_model), SETTINGS)
    module = make_run(stock_model, job).engine.module
    batches = [collate(job.train, chosen, 0, torch.device("cpu")) for chosen in ([0], [1], [0, 1])]
    with torch.no_grad():
        first, second, both = (job.losses(module(batch), batch) for batch in batches)
    torch.testing.assert_close(both, torch.cat([first, second]))


def test_the_scores_are_seqevals_of_the_written_predictions_which_hold_every_word(
    stock_model: Path, tagging_folder: Path
) -> None:
    data = load_tagging(TASKS["NER"], tagging_folder, test=True)
    job = make_job(TASKS["NER"], data, load_tokenizer(stock_model), SETTINGS)
    engine = make_run(stock_model, job).engine
    torch.nn.init.normal_(engine.module.head.weight, generator=torch.manual_seed(0))  # some of each label
    (path,) = data.test_answers()
    for found, name, split, sentences in (
        (job.evaluate(engine.module, engine.world), "dev.conll", "dev", data.dev),
        (job.predict_tests(engine.module, engine.world), path, "test", data.test),
    ):
        blocks = [[row.split("\t") for row in block.splitlines()] for block in found.files[name].split("\n\n")]
        words, target, predicted = ([[row[column] for row in block] for block in blocks] for column in range(3))
        assert [tuple(block) for block in words] == [sentence.words for sentence in sentences]
        assert [tuple(block) for block in target] == [sentence.labels for sentence in sentences]
        assert len(set(itertools.chain.from_iterable(predicted))) > 1
        assert found.metrics[split]["f1"] == seqeval.metrics.f1_score(target, predicted)


def test_words_without_pieces_count_as_the_most_frequent_label_and_are_reported(
    stock_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = [Sentence(("good", "word1", "word2"), ("B-loc", "O", "O"))]
    dev = [Sentence(("\u200d", "good"), ("B-loc", "B-loc")), Sentence(("\u200d",), ("O",))]
    job = make_job(TASKS["NER"], TaggingData(train, dev, []), load_tokenizer(stock_model), SETTINGS)
    assert capsys.readouterr().out == "NER dev: 2 words from which the tokenizer makes no piece are labeled O\n"
    engine = make_run(stock_model, job).engine
    rows = job.evaluate(engine.module, engine.world).files["dev.conll"].split("\n")
    assert (rows[0], rows[3]) == ("\u200d\tB-loc\tO", "\u200d\tO\tO")


def test_a_model_that_gives_every_word_one_label_has_collapsed(stock_model: Path, tagging_folder: Path) -> None:
    data = load_tagging(TASKS["NER"], tagging_folder)
    job = make_job(TASKS["NER"], data, load_tokenizer(stock_model), SETTINGS)
    engine = make_run(stock_model, job).engine
    torch.nn.init.zeros_(engine.module.head.weight)
    assert job.evaluate(engine.module, engine.world).constant
