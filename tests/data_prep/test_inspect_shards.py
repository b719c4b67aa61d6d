"""Claims about the output and exit codes of inspect_shards."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from data_prep import workers
from data_prep.build_shards import main as build
from data_prep.inspect_shards import InspectOptions, main, verify
from data_prep.manifest import load_manifest, save_manifest
from data_prep.masking import bytes_per_copy, mask_size
from data_prep.shards import IndexedFile
from data_prep.workers import start_pool
from foundation.config import ConfigError
from foundation.files import sealed

from .conftest import REPOSITORY, run_script, write_indexed


@pytest.fixture
def copy(built, tmp_path):
    return shutil.copytree(built, tmp_path / "copy")


def test_an_intact_folder_is_verified(built):
    done = run_script("data_prep/inspect_shards.py", built, "--verify", "--show", 1)
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


def masks_at_the_beginning(folder):
    """Rewrites the masks of all shards but the first so that they lie at the beginning of each sequence."""
    manifest = load_manifest(folder)
    for shard in manifest.shards[1:]:
        lengths = IndexedFile(folder / shard.name).lengths
        width = bytes_per_copy(manifest.seq_length)
        positions = np.arange(8 * width)
        masked = (positions >= 1) & (positions <= np.asarray(mask_size(lengths.astype(int)))[:, None])
        bitmaps = np.tile(np.packbits(masked, axis=1, bitorder="little"), manifest.mask_copies)
        sizes = np.full(len(lengths), bitmaps.shape[1], np.int32)
        write_indexed(folder / f"{shard.name}.mask", bitmaps.ravel(), sizes)


def rates_by_position(printed):
    return [float(rate) for rate in re.search(r"by position +([\d. ]+) times", printed)[1].split()]


def test_masks_of_every_shard_are_sampled_even_without_verify(copy, capsys):
    masks_at_the_beginning(copy)
    assert main(InspectOptions(folder=copy)) == 1
    assert re.search(r"sequence \d+ has a special token masked; --verify finds all", capsys.readouterr().err)


def test_verify_takes_its_figures_from_every_sequence(built, capsys):
    manifest = load_manifest(built)
    assert main(InspectOptions(folder=built, verify=True, workers=1)) == 0
    printed = capsys.readouterr().out
    assert f"in {manifest.totals.sequences:,} sequences with {manifest.mask_copies} masks each" in printed
    assert all(0.9 < rate < 1.1 for rate in rates_by_position(printed))


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


@pytest.mark.parametrize(
    ("vocab_size", "found"),
    [
        (9, "sequence 0 has an id beyond the vocabulary"),
        (65_536, "tokenizer: not the tokenizer named by the manifest"),
    ],
)
def test_another_size_of_the_vocabulary_is_found_even_without_verify(copy, capsys, vocab_size, found):
    save_manifest(load_manifest(copy).model_copy(update={"vocab_size": vocab_size}), copy)
    for verify_all in (False, True):
        assert main(InspectOptions(folder=copy, verify=verify_all, show=1, workers=1)) == 1
        assert found in capsys.readouterr().err


def test_an_id_beyond_the_vocabulary_is_found_even_without_verify(copy, capsys):
    ids = np.fromfile(copy / "shard-00000.bin", np.uint16)
    ids[1] = 65_535
    ids.tofile(copy / "shard-00000.bin")
    assert main(InspectOptions(folder=copy, show=1)) == 1
    assert "sequence 0 has an id beyond the vocabulary" in capsys.readouterr().err


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
        main(InspectOptions(folder=copy))


def test_reasons_of_a_manifest_cannot_forge_a_line(copy, capsys):
    values = json.loads((copy / "manifest.json").read_text())
    values["books"]["documents"]["dropped"]["a\n\x1b[31mverified"] = 1
    (copy / "manifest.json").write_bytes(sealed({name: values[name] for name in values if name != "sha256"}))
    assert main(InspectOptions(folder=copy)) == 0
    assert r"1 a\n\x1b[31mverified" in capsys.readouterr().out


def test_a_folder_without_shards_is_one_line_and_exit_code_2(tmp_path):
    done = run_script("data_prep/inspect_shards.py", tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "is no folder of shards" in done.stderr


def test_masks_are_compared_with_their_expected_distribution(built, capsys):
    main(InspectOptions(folder=built))
    printed = capsys.readouterr().out
    runs, simulated = (float(re.search(rf"{name} +1: ([\d.]+)%", printed)[1]) for name in ("masked runs", "simulated"))
    assert abs(runs - simulated) < 5
    rates = re.search(r"by position +([\d. ]+) times the expected rate", printed)[1].split()
    assert len(rates) == 8
    assert all(0.9 < float(rate) < 1.1 for rate in rates)
    assert "of the masked words, at most 2 in one mask" in printed


def test_masked_tokens_are_colored_on_a_terminal_only(built, capsys, monkeypatch):
    main(InspectOptions(folder=built, show=1))
    assert "\033[" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(InspectOptions(folder=built, show=1))
    assert "\033[30;43m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(InspectOptions(folder=built, show=1))
    assert "\033[" not in capsys.readouterr().out


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
    done = run_script("data_prep/inspect_shards.py", copy)
    assert done.returncode == 2
    assert "no tokenizer can be read" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_to_a_full_disk_is_a_readable_error(built, unbuffered):
    command = [sys.executable, "data_prep/inspect_shards.py", built]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode
    said = done.stderr.splitlines()
    assert said and all("No space left on device" in line for line in said), done.stderr


@pytest.fixture(scope="module")
def alone(built):
    with start_pool(1) as pool:
        return verify(built, load_manifest(built), pool)


@pytest.fixture(scope="module")
def two_workers():
    """Each imports megatron-core, which takes seconds, only once."""
    with start_pool(2) as pool:
        yield pool


def test_every_sequence_is_counted_whatever_the_number_of_workers(built, alone, two_workers):
    manifest = load_manifest(built)
    assert len(manifest.shards) > 1
    several = verify(built, manifest, two_workers)
    (problems, ours), (others, theirs) = alone, several
    assert problems == others == []
    assert ours.sequences == manifest.totals.sequences
    for name, value in vars(ours).items():
        np.testing.assert_array_equal(value, getattr(theirs, name), name)


@pytest.mark.parametrize(("shard_mb", "processes"), [(1000, []), (0.12, [2])])
def test_no_more_processes_verify_than_there_are_shards(options, tmp_path, monkeypatch, shard_mb, processes):
    assert build(options.model_copy(update={"output": tmp_path / "out", "shard_mb": shard_mb})) == 0
    started = []

    def start(size, *rest):
        started.append(size)
        return ProcessPoolExecutor(size, *rest)

    monkeypatch.setattr(workers, "ProcessPoolExecutor", start)
    assert main(InspectOptions(folder=tmp_path / "out", verify=True, workers=8)) == 0
    assert started == processes


def test_damage_in_several_shards_is_reported_in_their_order(built, tmp_path, two_workers):
    copy = shutil.copytree(built, tmp_path / "copy")
    manifest = load_manifest(copy)
    damaged = [manifest.shards[number].name for number in (0, -1)]
    for name in damaged:
        with (copy / f"{name}.bin").open("r+b") as file:
            file.write(b"\xff\xff")
    found, _ = verify(copy, manifest, two_workers)
    assert [problem.split(":")[0] for problem in found[:2]] == [str(copy / name) for name in damaged]
    assert all("changed since it was written (sha256)" in problem for problem in found[:2])
