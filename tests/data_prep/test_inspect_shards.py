"""Claims about inspect_shards: its output and exit codes, and its checks, each of which finds its kind of damage."""

import json
import os
import re
import shutil
import struct
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from data_prep import workers
from data_prep.build_shards import main as build
from data_prep.inspect_shards import InspectOptions, main, problems_of, read_rows, verify
from data_prep.manifest import load_manifest, save_manifest
from data_prep.masking import mask_size
from data_prep.shards import file_problems
from data_prep.workers import start_pool
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.files import sealed
from tests.data_prep.conftest import run_script, write_indexed


@pytest.fixture
def copy(built, tmp_path):
    return shutil.copytree(built, tmp_path / "copy")


def test_an_intact_folder_is_verified(built):
    done = run_script("data_prep/inspect_shards.py", built, "--verify", "--show", 1, "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert "verified: no problem found" in done.stdout
    assert "inspect_shards:" not in done.stderr
    assert "held_out" in done.stdout


def test_shown_sequences_have_their_masked_tokens_marked(built, capsys):
    assert main(InspectOptions(folder=built, show=2)) == 0
    shown = re.search(r"shard-00000, sequence 0, (\d+) tokens\n(\[CLS\] .*)\n", capsys.readouterr().out)
    text = re.sub(r"\[(CLS|SEP|UNK)\]", r"\1", shown[2])
    assert text.count("[") == mask_size(int(shown[1]))


def test_the_printed_figures_are_those_of_the_manifest(built, capsys):
    main(InspectOptions(folder=built))
    printed = capsys.readouterr().out
    manifest = load_manifest(built)
    assert f"{manifest.totals.sequences:,} sequences in {len(manifest.shards)} shards" in printed
    assert f"{manifest.books.documents.read:,} read" in printed
    assert "0.8000 0.1000 0.1000 requested" in printed


def test_repairs_and_the_share_of_each_input_are_printed(options, tmp_path, capsys):
    (tmp_path / "a.txt").write_bytes(b"Kalo mi \xff ne.\n\n" + "Ta vu\u0308.".encode() + b"\n\n" + b"ka" * 60_000)
    (tmp_path / "b.txt").write_text("Mi ne ru.")
    inputs = (tmp_path / "a.txt", tmp_path / "b.txt")
    output = tmp_path / "out"
    build(options.model_copy(update={"input": inputs, "output": output, "held_out": 0.0}))
    main(InspectOptions(folder=output))
    printed = capsys.readouterr().out
    assert (
        "1 malformed UTF-8 sequence, 1 document normalized to NFC, 0 overlong documents and 1 overlong line cut"
        in printed
    )
    assert re.search(r"input +0 a\.txt: 3 documents, 120,020 characters, [\d,]+ word pieces \(\d+\.\d%\)", printed)
    assert re.search(r"input +1 b\.txt: 1 document, 9 characters, 4 word pieces", printed)


def test_a_flipped_bit_is_found_and_its_file_named(copy, capsys):
    path = copy / "held_out" / load_manifest(copy / "held_out").shards[0].name
    damaged = path.with_name(path.name + ".mask.bin")
    content = bytearray(damaged.read_bytes())
    content[7] ^= 16
    damaged.write_bytes(content)
    assert main(InspectOptions(folder=copy, verify=True, workers=1)) == 1
    assert f"{damaged.name}: changed" in capsys.readouterr().err


def test_ledgers_that_do_not_balance_are_found(copy, capsys):
    values = json.loads((copy / "manifest.json").read_text())
    values["books"]["documents"]["read"] += 1
    (copy / "manifest.json").write_bytes(sealed({name: values[name] for name in values if name != "sha256"}))
    assert main(InspectOptions(folder=copy, verify=True, workers=1)) == 1
    errors = capsys.readouterr().err
    assert "do not balance" in errors
    assert "records: damaged, or from another build" in errors


def test_a_missing_file_and_another_size_of_the_vocabulary_are_found_even_without_verify(copy, capsys):
    save_manifest(load_manifest(copy).model_copy(update={"vocab_size": 65_536}), copy)
    (copy / "shard-00001.mask.bin").unlink()
    for verify_all in (False, True):
        assert main(InspectOptions(folder=copy, verify=verify_all, workers=1)) == 1
        errors = capsys.readouterr().err
        assert "tokenizer: not the tokenizer named by the manifest" in errors
        assert "shard-00001.mask.bin: No such file or directory" in errors


@pytest.mark.timeout(20)  # the pipe has no writer
@pytest.mark.parametrize("kind", ["empty", "pipe"])
def test_an_index_without_items_or_a_pipe_is_named(copy, kind):
    path = copy / "shard-00000.idx"
    if kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        for name, code in (("shard-00000", 8), ("shard-00000.mask", 1)):
            (copy / f"{name}.idx").write_bytes(path.read_bytes()[:9] + struct.pack("<QBQQ", 1, code, 0, 1) + bytes(8))
            (copy / f"{name}.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"shard-00000: (cannot be read as an indexed file|holds 0 sequences)"):
        next(read_rows(copy, load_manifest(copy).shards[0], load_manifest(copy)))


def test_reasons_of_a_manifest_cannot_forge_a_line(copy, capsys):
    values = json.loads((copy / "manifest.json").read_text())
    values["books"]["documents"]["dropped"]["a\n\x1b[31mverified"] = 1
    (copy / "manifest.json").write_bytes(sealed({name: values[name] for name in values if name != "sha256"}))
    assert main(InspectOptions(folder=copy)) == 0
    assert r"1 a\n\x1b[31mverified" in capsys.readouterr().out


def test_a_tokenizer_other_than_the_shards_own_is_found(copy, capsys):
    path = copy / "tokenizer" / "tokenizer.json"
    text = path.read_text()
    ka, lo = (re.search(f'"{token}": (\\d+)', text) for token in ("ka", "lo"))
    path.write_text(text.replace(ka[0], f'"ka": {lo[1]}').replace(lo[0], f'"lo": {ka[1]}'))
    assert main(InspectOptions(folder=copy, verify=True, workers=1)) == 1
    assert "not the tokenizer named by the manifest" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_an_unreadable_tokenizer_is_named(copy, damage):
    path = copy / "tokenizer" / "tokenizer.json"
    if damage == "missing":
        shutil.rmtree(path.parent)
    else:
        path.write_text(path.read_text()[:100])
    with pytest.raises(ConfigError, match="no tokenizer can be read"):
        main(InspectOptions(folder=copy))


@pytest.mark.parametrize(("shard_mb", "processes"), [(1000, []), (0.12, [2])])
def test_no_more_processes_verify_than_there_are_shards(options, tmp_path, monkeypatch, laptop, shard_mb, processes):
    """Without megatron-core, which each process would import for seconds."""
    monkeypatch.setenv("PYTHONPATH", laptop["PYTHONPATH"])
    assert build(options.model_copy(update={"output": tmp_path / "out", "shard_mb": shard_mb})) == 0
    started = []

    def start(size, *rest):
        started.append(size)
        return ProcessPoolExecutor(size, *rest)

    monkeypatch.setattr(workers, "ProcessPoolExecutor", start)
    assert main(InspectOptions(folder=tmp_path / "out", verify=True, workers=8)) == 0
    assert started == processes


def test_two_workers_report_damage_in_several_shards_in_the_order_of_the_shards(built, copy, monkeypatch, laptop):
    monkeypatch.setenv("PYTHONPATH", laptop["PYTHONPATH"])
    manifest = load_manifest(copy)
    damaged = [manifest.shards[number].name for number in (0, -1)]
    for name in damaged:
        with (copy / f"{name}.bin").open("r+b") as file:
            file.write(b"\xff\xff")
    with start_pool(2) as two_workers:
        assert verify(built, manifest, two_workers) == []
        found = verify(copy, manifest, two_workers)
    assert [problem.split(":")[0] for problem in found] == [str(copy / name) for name in damaged]
    assert all("changed since it was written (sha256)" in problem for problem in found)


@pytest.fixture(scope="module")
def manifest(built):
    return load_manifest(built)


@pytest.fixture
def rows(built, manifest):
    [rows] = read_rows(built, manifest.shards[0], manifest)
    return replace(rows, ids=rows.ids.copy(), masked=rows.masked.copy())


def no_start(rows, special):
    rows.ids[3, 0] = special.unk


def second_start(rows, special):
    rows.ids[3, 2] = special.cls


def no_end(rows, special):
    rows.ids[3, rows.lengths[3] - 1] = special.unk


def mask_inside(rows, special):
    rows.ids[3, 1] = special.mask


def beyond_the_vocabulary(rows, special):
    rows.ids[3, 1] = 60_000


def masked_start(rows, special):
    rows.masked[3, 0, 0] = True


def one_too_many(rows, special):
    free = np.flatnonzero(~rows.masked[3, 5, 1 : rows.lengths[3] - 1]) + 1
    rows.masked[3, 5, free[0]] = True


def masked_beyond(rows, special):
    rows.masked[3, 0, rows.lengths[3] :] = True


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (no_start, "does not start with [CLS]"),
        (second_start, "does not start with [CLS], or has a second one"),
        (no_end, "does not end with [SEP]"),
        (mask_inside, "has [MASK] or [PAD] among its tokens"),
        (beyond_the_vocabulary, "has an id beyond the vocabulary"),
        (masked_start, "has a special token masked"),
        (one_too_many, "does not have ceil(0.15 n) masked positions"),
        (masked_beyond, "has a mask beyond its end"),
    ],
)
def test_each_damage_is_found_and_its_sequence_named(manifest, rows, damage, problem):
    damage(rows, manifest.special_tokens)
    found = problems_of(rows, manifest)
    assert any(line.startswith(f"sequence 3 {problem}") for line in found), found


def test_changed_and_missing_files_are_distinguished(built, manifest, tmp_path):
    shard = manifest.shards[0]
    for name in (shard.name + suffix for suffix in shard.written):
        (tmp_path / name).write_bytes((built / name).read_bytes())
    content = bytearray((tmp_path / "shard-00000.bin").read_bytes())
    content[40] ^= 1
    (tmp_path / "shard-00000.bin").write_bytes(content)
    (tmp_path / "shard-00000.mask.idx").unlink()
    assert file_problems(tmp_path, shard) == [
        "shard-00000.bin: changed since it was written (sha256)",
        "shard-00000.mask.idx: No such file or directory",
    ]


def test_masks_of_another_shape_are_refused(built, manifest, tmp_path):
    shard = manifest.shards[0]
    for name in (shard.name + suffix for suffix in shard.written):
        (tmp_path / name).write_bytes((built / name).read_bytes())
    wrong = np.zeros(3 * shard.sequences, np.uint8)
    write_indexed(tmp_path / "shard-00000.mask", wrong, np.full(shard.sequences, 3, np.int32))
    with pytest.raises(ConfigError, match="does not have one row of masks per sequence"):
        next(read_rows(tmp_path, shard, manifest))
