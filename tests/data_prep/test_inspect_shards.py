"""Claims about inspect_shards: its output and exit codes, and its checks, each of which finds its kind of damage."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build
from data_prep.inspect_shards import InspectOptions, Rows, main, problems_of, read_rows, verify
from data_prep.manifest import Manifest, load_manifest, save_manifest
from data_prep.masking import mask_size
from data_prep.shards import IndexedFile
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.files import sealed, with_suffix
from tests.conftest import flip_bit
from tests.data_prep.conftest import again, write_indexed
from tests.data_prep.pools import pool_of


@pytest.fixture(scope="module")
def manifest(built: Path) -> Manifest:
    return load_manifest(built)


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "copy")


def test_an_intact_folder_is_verified_and_its_figures_are_those_of_the_manifest(
    built: Path, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(InspectOptions(folder=built, verify=True, workers=1)) == 0
    printed, errors = capsys.readouterr()
    assert "verified: no problem found" in printed and "inspect_shards:" not in errors
    assert f"{manifest.totals.sequences:,} sequences in {len(manifest.shards)} shards" in printed
    assert f"{manifest.books.documents.read:,} read" in printed
    assert "0.8000 0.1000 0.1000 requested" in printed
    assert f"{built / 'held_out'}: " in printed


def test_shown_sequences_have_their_masked_tokens_marked(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(InspectOptions(folder=built, show=2)) == 0
    shown = re.findall(r"shard-00000, sequence 0, (\d+) tokens\n(\[CLS\] .*)\n", capsys.readouterr().out)
    assert len(shown) == 2  # for training, and held out
    for length, text in shown:
        assert re.sub(r"\[(CLS|SEP|UNK)\]", r"\1", text).count("[") == mask_size(int(length))


def test_repairs_and_the_share_of_each_input_are_printed(
    options: BuildOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_bytes(b"Kalo mi \xff ne.\n\n" + "Ta vu\u0308.".encode() + b"\n\n" + b"ka" * 60_000)
    (tmp_path / "b.txt").write_text("Mi ne ru.")
    build(again(options, tmp_path / "out", input=(tmp_path / "a.txt", tmp_path / "b.txt"), held_out=0.0))
    main(InspectOptions(folder=tmp_path / "out"))
    printed = capsys.readouterr().out
    assert (
        "1 malformed UTF-8 sequence, 1 document normalized to NFC, 0 overlong documents and 1 overlong line cut"
        in printed
    )
    assert re.search(r"input +0 a\.txt: 3 documents, 120,020 characters, [\d,]+ word pieces \(\d+\.\d%\)", printed)
    assert re.search(r"input +1 b\.txt: 1 document, 9 characters, 4 word pieces", printed)


def test_a_flipped_bit_is_found_and_its_file_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = load_manifest(copy / "held_out").shards[0].name + ".mask.bin"
    flip_bit(copy / "held_out" / name)
    assert main(InspectOptions(folder=copy, verify=True, workers=1)) == 1
    assert f"{name}: changed" in capsys.readouterr().err


def test_ledgers_that_do_not_balance_are_found(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = json.loads((copy / "manifest.json").read_text())
    values["books"]["documents"]["read"] += 1
    (copy / "manifest.json").write_bytes(sealed({name: values[name] for name in values if name != "sha256"}))
    assert main(InspectOptions(folder=copy, verify=True, workers=1)) == 1
    errors = capsys.readouterr().err
    assert "do not balance" in errors
    assert "records: damaged, or from another build" in errors


def test_a_missing_file_and_another_size_of_the_vocabulary_are_found_even_without_verify(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_manifest(load_manifest(copy).model_copy(update={"vocab_size": 65_536}), copy)
    (copy / "shard-00000.mask.bin").unlink()
    for verify_all in (False, True):
        assert main(InspectOptions(folder=copy, verify=verify_all, show=1, workers=1)) == 1
        errors = capsys.readouterr().err
        assert "tokenizer: not the tokenizer named by the manifest" in errors
        assert "shard-00000.mask.bin: No such file or directory" in errors


def test_an_index_without_items_is_named(copy: Path, manifest: Manifest) -> None:
    for name, code in (("shard-00000", 8), ("shard-00000.mask", 1)):
        (copy / f"{name}.idx").write_bytes(struct.pack("<9sQBQQ", b"MMIDIDX", 1, code, 0, 1) + bytes(8))
        (copy / f"{name}.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"shard-00000: (cannot be read as an indexed file|holds 0 sequences)"):
        next(read_rows(copy, manifest.shards[0], manifest))


def test_reasons_of_a_manifest_cannot_forge_a_line(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = json.loads((copy / "manifest.json").read_text())
    values["books"]["documents"]["dropped"]["a\n\x1b[31mverified"] = 1
    (copy / "manifest.json").write_bytes(sealed({name: values[name] for name in values if name != "sha256"}))
    assert main(InspectOptions(folder=copy)) == 0
    assert r"1 a\n\x1b[31mverified" in capsys.readouterr().out


def test_a_tokenizer_other_than_the_shards_own_is_found(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy / "tokenizer" / "tokenizer.json"
    text, swapped = path.read_text(), {"ka": "lo", "lo": "ka"}
    path.write_text(re.sub('"(ka|lo)"', lambda found: f'"{swapped[found[1]]}"', text))
    assert main(InspectOptions(folder=copy, verify=True, workers=1)) == 1
    assert "not the tokenizer named by the manifest" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage", [lambda path: shutil.rmtree(path.parent), lambda path: path.write_text(path.read_text()[:100])]
)
def test_an_unreadable_tokenizer_is_named(copy: Path, damage: Callable[[Path], object]) -> None:
    damage(copy / "tokenizer" / "tokenizer.json")
    with pytest.raises(ConfigError, match="no tokenizer can be read"):
        main(InspectOptions(folder=copy))


def test_two_workers_report_damage_in_several_shards_in_the_order_of_the_shards(
    built: Path, copy: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch, laptop: dict[str, str]
) -> None:
    """Without megatron-core, which each process would import for seconds."""
    monkeypatch.setenv("PYTHONPATH", laptop["PYTHONPATH"])
    damaged = [copy / manifest.shards[number].name for number in (0, -1)]
    for prefix in damaged:
        flip_bit(with_suffix(prefix, ".bin"))
    with pool_of(2) as two_workers:
        assert verify(built, manifest, two_workers) == []
        found = verify(copy, manifest, two_workers)
    assert found == [f"{prefix}: {prefix.name}.bin: changed since it was written (sha256)" for prefix in damaged]


@pytest.fixture
def rows(built: Path, manifest: Manifest) -> Rows:
    [rows] = read_rows(built, manifest.shards[0], manifest)
    return replace(rows, ids=rows.ids.copy(), masked=rows.masked.copy())


UNK, CLS, MASK = 1, 2, 4


@pytest.mark.parametrize(
    ("place", "token", "problem"),
    [
        (0, UNK, "does not start with [CLS]"),
        (2, CLS, "does not start with [CLS], or has a second one"),
        (-1, UNK, "does not end with [SEP]"),
        (1, MASK, "has [MASK] or [PAD] among its tokens"),
        (1, 60_000, "has an id beyond the vocabulary"),
    ],
)
def test_a_wrong_token_is_found_and_its_sequence_named(
    manifest: Manifest, rows: Rows, place: int, token: int, problem: str
) -> None:
    rows.ids[3, : rows.lengths[3]][place] = token
    assert problem in "".join(problems_of(rows, manifest)).partition("sequence 3 ")[2]


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        (slice(0, 1), "has a special token masked"),
        (slice(1, 20), "does not have ceil(0.15 n) masked positions"),
        (slice(60, None), "has a mask beyond its end"),
    ],
)
def test_a_wrong_mask_is_found_and_its_sequence_named(
    manifest: Manifest, rows: Rows, places: slice, problem: str
) -> None:
    rows.masked[3, 5, places] = True
    assert f"sequence 3 {problem}" in problems_of(rows, manifest)


@pytest.mark.parametrize(("dtype", "width"), [(np.uint8, 3), (np.uint16, 80)])
def test_masks_of_another_shape_or_type_are_refused(
    copy: Path, manifest: Manifest, dtype: type[np.generic], width: int
) -> None:
    shard = manifest.shards[0]
    masks, widths = np.zeros(width * shard.sequences, dtype), np.full(shard.sequences, width, np.int32)
    write_indexed(copy / "shard-00000.mask", masks, widths)
    with pytest.raises(ConfigError, match="does not have one row of masks per sequence"):
        next(read_rows(copy, shard, manifest))


def test_a_sequence_without_text_is_refused(copy: Path, manifest: Manifest) -> None:
    file = IndexedFile(copy / "shard-00000")
    lengths = np.array([2, *file.lengths[1:]])
    write_indexed(copy / "shard-00000", file.data[-lengths.sum() :], lengths)
    shard = manifest.shards[0].model_copy(update={"tokens": int(lengths.sum())})
    with pytest.raises(ConfigError, match="a sequence's length is out of bounds"):
        next(read_rows(copy, shard, manifest))
