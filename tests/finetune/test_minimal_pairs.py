"""Claims about minimal pairs: ties count half, the files are read as they come."""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.blimp import BlimpOptions, main
from finetune.minimal_pairs import Pair, accuracies, read_pairs
from finetune.scoring import Scorer
from tests.finetune.conftest import entry, write_pairs


def test_a_tie_counts_half_in_every_group(stock_model: Path, tmp_path: Path) -> None:
    entries = [entry("word1", "Word1", "syntax/semantics"), entry("word2", "word2", "syntax_semantics", "islands", "q")]
    data = write_pairs(tmp_path / "data", *entries)
    main(BlimpOptions(models=(str(stock_model),), data=data, output=tmp_path / "out"))
    (found,) = json.loads((tmp_path / "out" / "blimp.json").read_text())["models"].values()
    names = ("all", "syntax_semantics", "binding", "islands", "p", "q")
    assert {name: values[0] for group in found.values() for name, values in group.items()} == dict.fromkeys(names, 50.0)
    with np.load(tmp_path / "out" / "blimp.npz") as file:
        assert file["right"].tolist() == [[0.5, 0.5]]


def test_a_mistake_in_a_later_model_is_refused_before_the_first_is_scored(
    stock_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scorer, "scores", lambda *given: pytest.fail("scored"))
    data = write_pairs(tmp_path / "data", entry())
    with pytest.raises(ConfigError, match=r"model: .*typo does not exist"):
        main(BlimpOptions(models=(str(stock_model), str(tmp_path / "typo")), data=data, output=tmp_path / "out"))


def test_accuracy_of_a_group_is_that_of_its_pairs_alone_and_lies_in_its_interval() -> None:
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


def test_the_zip_and_its_files_hold_the_same_pairs(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "files", entry(), entry(term="islands"))
    plain = read_pairs(folder)
    (folder / "p.jsonl").write_bytes(b"\xef\xbb\xbf" + (folder / "p.jsonl").read_bytes())
    assert read_pairs(folder) == plain, "a byte order mark changes nothing"
    (tmp_path / "zipped").mkdir()
    with zipfile.ZipFile(tmp_path / "zipped" / "BLiMP.zip", "w") as archive:
        archive.write(folder / "p.jsonl", "data/p.jsonl")
        archive.writestr("__MACOSX/data/._p.jsonl", b"\0")
    assert read_pairs(tmp_path / "zipped") == read_pairs(folder)


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", '{"sentence_good": "a"}', "\xff", "[" * 100_000, json.dumps(entry() | {"sentence_good": 3})),
        json.dumps(entry(good="\ud800")),
    ],
)
def test_a_malformed_line_is_refused(line: str, tmp_path: Path) -> None:
    folder = write_pairs(tmp_path, entry())
    with (folder / "p.jsonl").open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    with pytest.raises(ConfigError, match=r"data: .* cannot be read as BLiMP .*; download it again"):
        read_pairs(folder)


@pytest.mark.parametrize("content", [None, b""])
def test_a_folder_without_pairs_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "p.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=r"data: .* folder of BLiMP's \.jsonl files"):
        read_pairs(tmp_path)


def zipped(place: int, value: int) -> bytes:
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
def test_an_archive_that_cannot_be_read_is_named(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "BLiMP.zip").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"data: .* cannot be read as BLiMP \(.*({problem}).*\); download it again"):
        read_pairs(tmp_path)


@pytest.mark.parametrize("name", ["p.jsonl", "BLiMP.zip"])
def test_a_pipe_in_the_place_of_pairs_is_refused_by_name(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=rf"data: .*{name} is a pipe, a socket or a device; give a file"):
        read_pairs(tmp_path)


@pytest.mark.long
def test_all_of_blimp_is_scored_in_its_groups(pretrained_model: Path, shared_data: Path, tmp_path: Path) -> None:
    kinds: Any = ("discriminator", "generator", "likelihood")  # of a pair trained with HP_Loss
    main(BlimpOptions(models=(str(pretrained_model),), data=shared_data / "blimp", score=kinds, output=tmp_path))
    results = json.loads((tmp_path / "blimp.json").read_text())
    assert (results["pairs"], len(results["models"])) == (67_000, 3)
    for found in results["models"].values():
        # the paper's 12 phenomena and s-selection, which the files count by itself
        assert [len(found[group]) for group in ("field", "term", "paradigm")] == [4, 13, 67]
        value, low, high = found["all"]["all"]
        assert low < value < high < low + 1
