"""Claims about minimal pairs: scores equal Hugging Face's, ties count half, the files are read as they come."""

import io
import json
import os
import zipfile

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from finetune.minimal_pairs import Pair, accuracies, batches_by_length, evaluate, open_scorers, read_pairs
from foundation.config import ConfigError

SENTENCES = ["word1 word2 good", "bad word3 , word4 word5 .", "good", "word9 word9 bad word9"]


def entry(good="word1 good", bad="word1 bad", field="syntax", term="binding", paradigm="p"):
    return {"sentence_good": good, "sentence_bad": bad, "field": field, "linguistics_term": term, "UID": paradigm}


def write_pairs(folder, *entries):
    folder.mkdir(exist_ok=True)
    (folder / "p.jsonl").write_text("\n".join(json.dumps(e) for e in entries) + "\n")
    return folder


@pytest.fixture(scope="module")
def stock_generator(stock_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generator")
    torch.manual_seed(1)
    ElectraForMaskedLM(ElectraConfig.from_pretrained(stock_model)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(stock_model).save_pretrained(folder)
    return folder


@torch.inference_mode()
def test_a_discriminators_score_is_the_sum_of_log_probabilities_of_original(stock_model):
    (scorer,) = open_scorers(str(stock_model), random_weights=False)
    tokenizer, model = AutoTokenizer.from_pretrained(stock_model), ElectraForPreTraining.from_pretrained(stock_model)
    found = scorer.scores(SENTENCES)
    for sentence in SENTENCES:
        d = model(**tokenizer(sentence, return_tensors="pt")).logits[0, 1:-1].double()
        assert found[sentence] == pytest.approx(torch.log(1 - torch.sigmoid(d)).sum().item(), abs=1e-5)


@torch.inference_mode()
def test_a_generators_score_masks_each_token_in_turn(stock_generator):
    (scorer,) = open_scorers(str(stock_generator), random_weights=False)
    tokenizer, model = (
        AutoTokenizer.from_pretrained(stock_generator),
        ElectraForMaskedLM.from_pretrained(stock_generator),
    )
    found = scorer.scores(SENTENCES)
    for sentence in SENTENCES:
        ids = tokenizer(sentence, return_tensors="pt").input_ids
        expected = 0.0
        for position in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, position] = tokenizer.mask_token_id
            expected += model(masked).logits[0, position].double().log_softmax(-1)[ids[0, position]].item()
        assert found[sentence] == pytest.approx(expected, abs=1e-4)


def test_sentences_with_equal_tokens_have_equal_scores_whatever_batch_they_are_in(stock_model):
    (scorer,) = open_scorers(str(stock_model), random_weights=False)
    found = scorer.scores([*SENTENCES, "Word1  word2 GOOD"])
    assert found["Word1  word2 GOOD"] == found["word1 word2 good"]


def test_batches_hold_each_sequence_once_and_one_length(monkeypatch):
    monkeypatch.setattr("finetune.minimal_pairs.TOKENS_PER_BATCH", 10)
    sequences = {(*range(length + 1), extra) for length in range(5) for extra in range(7)}
    batches = [*batches_by_length(sequences)]
    assert sorted(sequence for batch in batches for sequence in batch) == sorted(sequences)
    assert all(len({len(sequence) for sequence in batch}) == 1 for batch in batches)
    assert max(sum(map(len, batch)) for batch in batches) <= 10


def test_a_tie_counts_half_in_every_group(stock_model, tmp_path):
    entries = [entry("word1", "Word1", "syntax/semantics"), entry("word2", "word2", "syntax_semantics", "islands", "q")]
    evaluate([str(stock_model)], write_pairs(tmp_path / "data", *entries), False, tmp_path / "out")
    (found,) = json.loads((tmp_path / "out" / "blimp.json").read_text())["models"].values()
    names = ("all", "syntax_semantics", "binding", "islands", "p", "q")
    assert {name: values[0] for group in found.values() for name, values in group.items()} == dict.fromkeys(names, 50.0)
    with np.load(tmp_path / "out" / "blimp.npz") as file:
        assert file["right"].tolist() == [[0.5, 0.5]]


def test_accuracy_of_a_group_is_that_of_its_pairs_alone_and_lies_in_its_interval():
    random = np.random.default_rng(0)
    pairs = [Pair("", "", f"f{i % 2}", f"t{i % 3}", f"p{i % 6}") for i in range(600)]
    right = random.choice([0, 0.5, 1], size=600)
    found = accuracies(right, pairs)
    for group in ("field", "term", "paradigm"):
        for name, (value, low, high) in found[group].items():
            chosen = [r for r, pair in zip(right, pairs, strict=True) if getattr(pair, group) == name]
            assert value == pytest.approx(100 * np.mean(chosen))
            half = 196 * np.std(chosen) / np.sqrt(len(chosen))  # the normal approximation
            assert (value - low, high - value) == (pytest.approx(half, rel=0.25), pytest.approx(half, rel=0.25))


def test_the_zip_and_its_files_hold_the_same_pairs(tmp_path):
    folder = write_pairs(tmp_path / "files", entry(), entry(term="islands"))
    (tmp_path / "zipped").mkdir()
    with zipfile.ZipFile(tmp_path / "zipped" / "BLiMP.zip", "w") as archive:
        archive.write(folder / "p.jsonl", "data/p.jsonl")
        archive.writestr("__MACOSX/data/._p.jsonl", b"\0")
    assert read_pairs(tmp_path / "zipped") == read_pairs(folder)


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", '{"sentence_good": "a"}', "\xff", "[" * 100_000, json.dumps(entry(good=3))),
        json.dumps(entry(good="\ud800")),
    ],
)
def test_a_malformed_line_is_refused(line, tmp_path):
    folder = write_pairs(tmp_path, entry())
    with (folder / "p.jsonl").open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    with pytest.raises(ConfigError, match=r"data: .* cannot be read as BLiMP .*; download it again"):
        read_pairs(folder)


@pytest.mark.parametrize("content", [None, b""])
def test_a_folder_without_pairs_is_refused(content, tmp_path):
    if content is not None:
        (tmp_path / "p.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=r"data: .* folder of BLiMP's \.jsonl files"):
        read_pairs(tmp_path)


def zipped(place, value):
    """BLiMP.zip whose flags (6) or compression method (8) are changed, in both of its headers."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("data/p.jsonl", json.dumps(entry()))
    changed = bytearray(content.getvalue())
    changed[place] = changed[changed.index(b"PK\1\2") + place + 2] = value
    return bytes(changed)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (zipped(6, 1), "encrypted"),
        (zipped(8, 99), "compression method"),
        (zipped(8, 8), "invalid|Error"),
        (b"PK", "zip"),
    ],
)
def test_an_archive_that_cannot_be_read_is_named(content, problem, tmp_path):
    (tmp_path / "BLiMP.zip").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"data: .* cannot be read as BLiMP \(.*({problem}).*\); download it again"):
        read_pairs(tmp_path)


@pytest.mark.parametrize("name", ["p.jsonl", "BLiMP.zip"])
def test_a_pipe_in_the_place_of_pairs_is_refused_by_name(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=rf"data: .*{name} is a pipe, a socket or a device; give a file"):
        read_pairs(tmp_path)


def test_a_sentence_beyond_the_positions_is_refused(stock_model):
    (scorer,) = open_scorers(str(stock_model), random_weights=False)
    with pytest.raises(ConfigError, match="has 42 tokens; expected at most 32"):
        scorer.scores([" ".join(["word1"] * 40)])


def test_a_fine_tuned_model_is_refused(stock_model, tmp_path):
    from transformers import ElectraForSequenceClassification

    ElectraForSequenceClassification(ElectraConfig.from_pretrained(stock_model)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no pre-training head"):
        next(open_scorers(str(tmp_path), random_weights=False))


@pytest.mark.long
def test_all_of_blimp_is_scored_in_its_groups(pretrained_model, shared_data, tmp_path):
    assert len([*open_scorers(str(pretrained_model), random_weights=False, discriminator_only=True)]) == 1
    evaluate([str(pretrained_model)], shared_data / "blimp", True, tmp_path)
    results = json.loads((tmp_path / "blimp.json").read_text())
    assert results["pairs"] == 67_000
    assert len(results["models"]) == 4  # the discriminator and its generator, trained and untrained
    for found in results["models"].values():
        # the paper's 12 phenomena and s-selection, which the files count by itself
        assert [len(found[group]) for group in ("field", "term", "paradigm")] == [4, 13, 67]
        value, low, high = found["all"]["all"]
        assert low < value < high < low + 1
