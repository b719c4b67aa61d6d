"""finetune/tagging/job.py: a loss per word, and scores that seqeval gives to the predictions that are written."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqeval.metrics
import torch
import torch.nn.functional as F
from tokenizers import normalizers
from transformers import AutoTokenizer

from finetune.config import TaggingConfig
from finetune.presets import settings_for
from finetune.reporting.comparisons import summed
from finetune.running.job import IGNORED, Batch, collate
from finetune.running.train import Run
from finetune.tagging.files import TASKS, Sentence, TaggingData, load_tagging
from finetune.tagging.job import (
    TaggingJob,
    TokenClassifier,
    count_matches,
    cut_sentence,
    make_job,
    score,
    tokenize_sentences,
)
from pretrain.huggingface.folders import load_tokenizer
from pretrain.huggingface.stored import read_stored
from pretrain.job.processes import start_processes
from tests.data_prep.conftest import write_byte_level_bpe
from tests.finetune.conftest import FP32

SETTINGS = settings_for(TaggingConfig, "NER", 32, 32, {"batch_size": 8, "max_length": 8})


@pytest.fixture(scope="module")
def data(tagging_folder: Path) -> TaggingData:
    return load_tagging(TASKS["NER"], tagging_folder, test=True)


@pytest.fixture(scope="module")
def job(data: TaggingData, stock_model: Path) -> TaggingJob:
    return make_job(TASKS["NER"], data, load_tokenizer(stock_model), SETTINGS)


def make_run(stock_model: Path, job: TaggingJob) -> Run:
    made = Run(read_stored(stock_model).encoder(), job, SETTINGS, 1, FP32, start_processes())
    made.engine.module.eval()
    return made


def test_the_losses_of_all_features_have_the_mean_of_the_loss_per_word(data: TaggingData, job: TaggingJob) -> None:
    size = len(job.train.targets)
    assert size > len(data.train)  # some sentences are cut
    batch = collate(job.train, range(size), 0, torch.device("cpu"))
    logits_BLC = torch.randn(*batch.target_B.shape, len(job.classes), generator=torch.manual_seed(0))
    words = np.concatenate([row[row != IGNORED] for row in job.train.targets])
    assert len(words) == sum(len(sentence.words) for sentence in data.train)
    expected = F.cross_entropy(logits_BLC[batch.target_B != IGNORED], torch.tensor(words))
    torch.testing.assert_close(job.losses(logits_BLC, batch).mean(), expected)


def test_the_scores_are_seqevals_of_the_written_predictions_which_hold_every_word(
    data: TaggingData, job: TaggingJob, stock_model: Path
) -> None:
    engine = make_run(stock_model, job).engine
    torch.nn.init.normal_(
        engine.module.get_parameter("head.weight"), generator=torch.manual_seed(0)
    )  # some of each label
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


def test_a_model_that_gives_every_word_one_label_has_collapsed(job: TaggingJob, stock_model: Path) -> None:
    engine = make_run(stock_model, job).engine
    torch.nn.init.zeros_(engine.module.get_parameter("head.weight"))
    assert job.evaluate(engine.module, engine.world).constant


CLASSES = {"A": 0, "B": 1}


@pytest.fixture(scope="module")
def tokenizer(stock_model: Path) -> Any:
    return load_tokenizer(stock_model)


def test_the_first_piece_carries_the_label_0_if_it_is_new_and_other_pieces_are_ignored(tokenizer: Any) -> None:
    tagged = tokenize_sentences([Sentence(("good", "word1,.", "bad"), ("A", "B", "new"))], CLASSES, tokenizer, 16)
    (ids,), (targets,) = tagged.features.input_ids, tagged.features.targets
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "good", "word1", ",", ".", "bad", "[SEP]"]
    assert targets.tolist() == [IGNORED, 0, 1, IGNORED, IGNORED, 0, IGNORED]
    assert tagged.places.tolist() == [0, 1, 2]


@pytest.mark.parametrize("space", [[], [normalizers.Prepend(" ")]])
def test_words_have_the_pieces_of_a_byte_level_bpe_in_running_text(
    space: list[normalizers.Normalizer], tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(write_byte_level_bpe(tmp_path / "bpe"))
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(space)
    tagged = tokenize_sentences([Sentence(("then", "the", ",", "day"), tuple("ABAB"))], CLASSES, tokenizer, 32)
    assert [*tagged.features.input_ids[0][1:-1]] == tokenizer("then the , day", add_special_tokens=False)["input_ids"]


def test_a_long_sentence_is_cut_between_words_and_a_longer_word_keeps_its_first_pieces(tokenizer: Any) -> None:
    words = ("good", "word1,.", "word2", "." * 9, "bad")
    tagged = tokenize_sentences([Sentence(words, tuple("ABABA"))], CLASSES, tokenizer, 6)
    parts = [tokenizer.convert_ids_to_tokens(ids[1:-1]) for ids in tagged.features.input_ids]
    assert parts == [["good", "word1", ",", "."], ["word2"], ["."] * 4, ["bad"]]
    assert [row[row != IGNORED].tolist() for row in tagged.features.targets] == [[0, 1], [0], [1], [0]]


def test_every_word_is_scored_exactly_once_in_its_order_on_random_sentences(tokenizer: Any) -> None:
    """Each class number is a word's own: what comes back is what went in, for any lengths and splits."""
    random = np.random.default_rng(0)
    for _ in range(50):
        sentences: list[Sentence] = []
        classes: dict[str, int] = {}
        for number in range(int(random.integers(1, 6))):
            words = [
                "\u200d" if random.random() < 0.1 else "word1" + "," * int(random.integers(0, 9))
                for _ in range(int(random.integers(1, 20)))
            ]
            labels = tuple(f"{number}-{place}" for place in range(len(words)))
            classes |= {label: len(classes) + place for place, label in enumerate(labels)}
            sentences.append(Sentence(tuple(words), labels))
        max_length = int(random.integers(8, 33))
        tagged = tokenize_sentences(sentences, classes, tokenizer, max_length)
        longest = max(map(len, tagged.features.targets), default=0)
        assert longest <= max_length
        answers = np.stack([np.pad(row, (0, longest - len(row))) for row in tagged.features.targets])
        found = tagged.label_words(answers, list(classes), "none")
        expected = [
            ["none" if word == "\u200d" else label for word, label in zip(sentence.words, sentence.labels, strict=True)]
            for sentence in sentences
        ]
        assert found == expected


def test_parts_are_as_long_as_they_may_be() -> None:
    assert list(cut_sentence([2, 2, 1, 5, 9, 1], 5)) == [range(3), range(3, 4), range(4, 5), range(5, 6)]
    assert list(cut_sentence([9, 1], 5)) == [range(1), range(1, 2)], "a long word may be the first"
    assert list(cut_sentence([], 5)) == []


def test_the_logits_are_those_of_electra_for_token_classification(stock_model: Path) -> None:
    from transformers import ElectraForTokenClassification

    theirs = ElectraForTokenClassification.from_pretrained(stock_model, num_labels=5).eval()
    ours = TokenClassifier(read_stored(stock_model).encoder(), 5).eval()
    ours.head.load_state_dict(theirs.classifier.state_dict())
    ids_BL = torch.randint(5, 45, (3, 12), generator=torch.manual_seed(0))
    mask_BL = torch.arange(12) < torch.tensor([[12], [7], [3]])
    batch = Batch(ids_BL, mask_BL, torch.zeros_like(ids_BL), torch.zeros(3), torch.ones(3))
    with torch.inference_mode():
        expected_BLC = theirs(input_ids=ids_BL, attention_mask=mask_BL.long()).logits
        found_BLC = ours(batch)
    torch.testing.assert_close(found_BLC[mask_BL], expected_BLC[mask_BL], rtol=0, atol=1e-6)


def test_the_head_starts_as_hugging_faces(stock_model: Path) -> None:
    torch.manual_seed(0)
    head = TokenClassifier(read_stored(stock_model).encoder(), 2_000).head
    assert head.bias.abs().max() == 0
    assert abs(head.weight.std().item() - 0.02) < 5e-4


NER, POS = TASKS["NER"], TASKS["POS"]
LABELS = ["O", "B-per", "I-per", "B-loc", "I-loc"]


def of_counts(counts: dict[str, list[int]], metric: str, weights: list[int]) -> float:
    """The metric of sentences that occur so many times, from their counts."""
    columns, statistic = summed(counts, metric)
    return float(np.nan_to_num(statistic(np.stack(columns) @ np.array(weights))))


def random_labels(random: np.random.Generator) -> list[list[str]]:
    return [[str(label) for label in random.choice(LABELS, size=size)] for size in (7, 1, 12, 4)]


def test_an_entity_counts_if_its_bounds_and_its_type_are_right() -> None:
    target = [["B-per", "I-per", "O", "B-loc"], ["B-loc", "O"]]
    predicted = [["B-per", "I-per", "O", "B-per"], ["B-loc", "I-loc"]]
    assert score(NER, target, predicted) == {"f1": 1 / 3, "precision": 1 / 3, "recall": 1 / 3}
    assert count_matches(NER, target, predicted) == {"wanted": [2, 1], "found": [2, 1], "matched": [1, 0]}


def test_without_entities_the_scores_are_0() -> None:
    assert score(NER, [["B-per"]], [["O"]]) == {"f1": 0, "precision": 0, "recall": 0}


@pytest.mark.parametrize("seed", range(5))
def test_scores_and_counts_agree_with_seqeval_on_random_labels(seed: int) -> None:
    random = np.random.default_rng(seed)
    target, predicted = random_labels(random), random_labels(random)
    found = score(NER, target, predicted)
    assert found["f1"] == seqeval.metrics.f1_score(target, predicted)
    assert found["precision"] == seqeval.metrics.precision_score(target, predicted)
    assert found["recall"] == seqeval.metrics.recall_score(target, predicted)
    counts = count_matches(NER, target, predicted)
    for name, value in found.items():
        assert of_counts(counts, name, [1] * 4) == pytest.approx(value, abs=1e-12)
    right = [a == b for pair in zip(target, predicted, strict=True) for a, b in zip(*pair, strict=True)]
    assert score(POS, target, predicted) == {"accuracy": np.mean(right)}
    assert of_counts(count_matches(POS, target, predicted), "accuracy", [1] * 4) == pytest.approx(np.mean(right))


def test_a_resample_of_sentences_scores_as_those_sentences() -> None:
    random = np.random.default_rng(0)
    target, predicted = random_labels(random), random_labels(random)
    chosen = [0, 2, 2, 3]
    counts = count_matches(NER, target, predicted)
    expected = seqeval.metrics.f1_score([target[i] for i in chosen], [predicted[i] for i in chosen])
    assert of_counts(counts, "f1", [1, 0, 2, 1]) == pytest.approx(expected)
