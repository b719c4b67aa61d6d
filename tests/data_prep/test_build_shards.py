"""Claims about whole builds: identical bytes however they are run, and one line for every user error."""

import json
import lzma
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from data_prep.build_shards import BuildOptions, main
from data_prep.inspect_shards import InspectOptions, problems_of, read_rows
from data_prep.inspect_shards import main as inspect
from data_prep.manifest import load_manifest
from data_prep.output import LOCK_NAME
from data_prep.shards import file_problems
from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.config import ConfigError
from tests.conftest import REPOSITORY, flip_bit, needs, unread
from tests.data_prep.conftest import (
    again,
    command_of,
    contents,
    finished_shards,
    kill_build,
    limit_file_size,
    processes_below,
    run_script,
    start_build,
    wait_for,
    with_other_text,
)
from tests.data_prep.malformed import malformed_file


def test_a_build_of_one_shard_and_its_inspection_start_no_process_and_give_the_same_bytes(
    options: BuildOptions, one_process: None, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("\n\n".join(ARTICLES))
    for workers in (1, 8):
        case = again(options, tmp_path / f"{workers}", input=(tmp_path / "in.txt",), shard_mb=1, workers=workers)
        assert main(case) == 0
    assert contents(tmp_path / "8") == contents(tmp_path / "1")
    assert inspect(InspectOptions(folder=tmp_path / "8", verify=True, workers=8)) == 0


MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3", sys.executable)


def test_every_format_deduplicated_is_the_same_under_mpirun_whatever_was_killed(
    options: BuildOptions, formats: tuple[Path, ...], tmp_path: Path
) -> None:
    """The whole job is killed twice: during the search for duplicates, and during the build."""
    needs("mpirun")
    shutil.copytree(formats[0], tmp_path / "again")
    changes = {"input": (*formats, tmp_path / "again"), "shard_mb": 0.003, "dedup": "near"}
    assert main(again(options, tmp_path / "one", **changes)) == 0
    assert load_manifest(tmp_path / "one").books.documents.dropped["duplicate"] == 24
    killed = again(options, tmp_path / "out", **changes)
    kill_build(killed, lambda: len(list(killed.output.glob(".build/keys-*.bin"))) >= 3, launcher=MPIRUN)
    kill_build(killed, lambda: finished_shards(killed.output) >= 3, launcher=MPIRUN)
    done = subprocess.run([*MPIRUN, *command_of(killed)], cwd=REPOSITORY, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert contents(killed.output) == contents(tmp_path / "one")


def kill_after(options: BuildOptions, shards: int) -> None:
    """Runs the build until this many shards are done, then kills it."""
    kill_build(options, lambda: finished_shards(options.output) >= shards)


@pytest.fixture(scope="module")
def killed(options: BuildOptions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a build that was killed three times, each time as soon as more shards were done."""
    case = again(options, tmp_path_factory.mktemp("killed") / "out")
    for shards in (1, 2, 5):
        kill_after(case, shards)
    return case.output


@pytest.fixture
def half_built(options: BuildOptions, killed: Path, tmp_path: Path) -> tuple[Path, BuildOptions]:
    """A copy of it and of the corpus: the copy's folder and the options that resume it."""
    folder = shutil.copytree(options.input[0], tmp_path / options.input[0].name)
    return folder, again(options, shutil.copytree(killed, tmp_path / "out"), input=(folder,))


def test_a_build_killed_at_any_moment_resumes_to_the_same_bytes_even_if_its_input_was_touched(
    half_built: tuple[Path, BuildOptions], built: Path, begun: list[str]
) -> None:
    folder, case = half_built
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    recorded = {path.stem for path in (case.output / "records").glob("shard-*.json")}
    assert main(case) == 0
    assert contents(case.output) == contents(built)
    assert len(recorded) >= 5
    assert not recorded & set(begun), "finished shards were built again"


def test_input_that_changed_during_a_build_is_refused_by_name_even_at_the_same_size_and_time(
    half_built: tuple[Path, BuildOptions],
) -> None:
    """Nothing is built from the new text, so that the old one, once restored, resumes the build."""
    folder, case = half_built
    case = again(case, case.output.with_name("lines"), sentences="line")
    kill_after(case, 2)
    (case.output / "records" / "shard-00000.json").unlink()
    before = contents(case.output / "records")
    for path in folder.iterdir():
        with_other_text(path)
    with pytest.raises(ConfigError, match=r"text of .*part-.\.txt.* has changed since .* was built from it"):
        main(case)
    assert contents(case.output / "records") == before


def test_text_edited_between_two_starts_is_refused_where_its_punkt_model_would_stay(
    half_built: tuple[Path, BuildOptions],
) -> None:
    folder, case = half_built
    recorded = sorted((case.output / "records").glob("shard-*.json"))
    text = (folder / "part-7.txt").read_bytes()
    (folder / "part-7.txt").write_bytes(text[:-1000] + b"Mr. Ka lo. Mr. Ta vu. " * 45 + text[-10:])
    assert (folder / "part-7.txt").stat().st_size == len(text)
    with pytest.raises(ConfigError, match=r"input: the text has changed since the build in .* began"):
        main(case)
    assert sorted((case.output / "records").glob("shard-*.json")) == recorded


def test_a_finished_build_of_other_text_does_not_count_as_finished(
    options: BuildOptions, built: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(options.input[0], tmp_path / options.input[0].name)
    output = shutil.copytree(built, tmp_path / "out")
    with_other_text(folder / "part-6.txt")
    with pytest.raises(ConfigError, match=r"text of .*part-6\.txt has changed since .* was built from it"):
        main(again(options, output, input=(folder,)))
    assert contents(output) == contents(built)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1]), flip_bit])
def test_what_is_missing_cut_or_flipped_in_a_finished_build_is_rebuilt(
    options: BuildOptions, built: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    output = shutil.copytree(built, tmp_path / "out")
    shards = ("shard-00001.bin", "shard-00002.mask.idx", "held_out/shard-00000.mask.bin", "records/shard-00003.json")
    for name in (*shards, "manifest.json", "tokenizer/vocab.txt", "punkt/ortho_context.tab"):
        damage(output / name)
    assert main(again(options, output)) == 0
    assert contents(output) == contents(built)


def test_a_finished_build_is_not_changed_by_a_rerun(options: BuildOptions, built: Path) -> None:
    before = {path: unread(path) for path in built.rglob("*") if path.is_file() and path.name != LOCK_NAME}
    assert main(again(options, built)) == 0
    assert {path: unread(path) for path in before} == before
    assert {path for path in built.rglob("*") if path.is_file()} == {*before, built / LOCK_NAME}


def test_full_packing_has_hardly_any_padding(options: BuildOptions, tmp_path: Path) -> None:
    assert main(again(options, tmp_path / "out", packing="full", shard_mb=1.0)) == 0
    assert load_manifest(tmp_path / "out").totals.padding_share < 0.01


def test_a_build_of_one_segment_is_recorded_and_any_other_keeps_its_bytes(
    options: BuildOptions, built: Path, tmp_path: Path
) -> None:
    assert main(again(options, tmp_path / "out", one_segment=True)) == 0
    manifest = load_manifest(tmp_path / "out")
    assert manifest.config.one_segment
    assert not load_manifest(built).config.one_segment
    assert not any(b"one_segment" in (built / name).read_bytes() for name in ("manifest.json", "records/plan.json"))
    ids = np.concatenate([np.fromfile(path, np.uint16) for path in sorted((tmp_path / "out").glob("shard-?????.bin"))])
    assert (ids == manifest.special_tokens.sep).sum() == manifest.totals.sequences
    with pytest.raises(ConfigError, match=r"one_segment: the build in .* has True, this one none"):
        main(again(options, tmp_path / "out"))


def test_nothing_held_out_makes_no_held_out_folder_and_no_remark(
    options: BuildOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(again(options, tmp_path / "out", held_out=0.0)) == 0
    assert not (tmp_path / "out" / "held_out").exists()
    assert "no document was held out" not in capsys.readouterr().out
    (tmp_path / "out" / "held_out").mkdir()
    (tmp_path / "out" / "held_out" / "thesis.tex").write_text("mine")
    assert main(again(options, tmp_path / "out", held_out=0.0)) == 0
    assert (tmp_path / "out" / "held_out" / "thesis.tex").read_text() == "mine"


@pytest.fixture(scope="module")
def repeated(options: BuildOptions, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A corpus that holds every document twice, and its build without duplicates."""
    folder = tmp_path_factory.mktemp("repeated")
    for name in ("first", "second"):
        shutil.copytree(options.input[0], folder / "corpus" / name)
    output = folder / "out"
    assert main(again(options, output, input=(folder / "corpus",), dedup="exact")) == 0
    return folder / "corpus", output


def test_duplicate_documents_are_dropped_and_counted_in_the_manifest_and_in_the_headline(
    options: BuildOptions, built: Path, repeated: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, output = repeated
    once, twice = load_manifest(built).books, load_manifest(output).books
    assert twice.documents.dropped == {"duplicate": 96}
    assert twice.balances
    assert (twice.documents.train, twice.documents.held_out) == (once.documents.train, once.documents.held_out)
    assert twice.word_pieces == once.word_pieces
    assert main(again(options, output, input=(corpus,), dedup="exact")) == 0
    said = f": 96 of 192 documents kept ({once.documents.held_out} held out; dropped: 96 duplicate), "
    assert said in capsys.readouterr().out


@pytest.fixture(scope="module")
def edited(options: BuildOptions, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A corpus of documents, the same with one word more, and some exact copies; its build without near copies."""
    folder = tmp_path_factory.mktemp("edited")
    shutil.copytree(options.input[0], folder / "corpus" / "first")
    shutil.copy(options.input[0] / "part-0.txt", folder / "corpus" / "copies.txt")
    for path in sorted(options.input[0].iterdir()):
        (folder / "corpus" / path.name).write_text("Lo " + path.read_text().replace("\n\n", "\n\nLo "))
    assert main(again(options, folder / "out", input=(folder / "corpus",), dedup="near")) == 0
    return folder / "corpus", folder / "out"


def test_near_copies_are_dropped_and_counted_by_themselves(built: Path, edited: tuple[Path, Path]) -> None:
    books, once = load_manifest(edited[1]).books, load_manifest(built).books
    dropped = books.documents.dropped
    assert books.balances and books.documents.read == 96 + 96 + 12
    assert dropped.keys() == {"duplicate", "near_duplicate"} and dropped["duplicate"] == 12
    assert 92 <= dropped["near_duplicate"] <= 96
    assert books.characters.dropped["near_duplicate"] == pytest.approx(once.characters.read, rel=0.05)


@pytest.mark.parametrize(
    ("dedup", "fixture", "killed_with", "count"), [("exact", "repeated", "keys", 2), ("near", "edited", "copies", 1)]
)
def test_which_copies_are_dropped_does_not_depend_on_workers_or_restarts(
    options: BuildOptions,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    dedup: str,
    fixture: str,
    killed_with: str,
    count: int,
) -> None:
    """Killed while it hashes or while it builds; one process finishes what several began."""
    text, expected = request.getfixturevalue(fixture)
    case = again(options, tmp_path / "out", input=(text,), workers=2, dedup=dedup)
    kill_build(case, lambda: len(list(case.output.glob(f".build/{killed_with}-*.bin"))) >= count)
    assert main(case.model_copy(update={"workers": 1})) == 0
    assert contents(case.output) == contents(expected)


def test_a_dry_run_estimates_disk_and_shards_about_right_counts_workers_with_a_shard_and_writes_nothing(
    options: BuildOptions, built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(again(options, tmp_path / "out", dry_run=True, workers=64)) == 0
    printed, shards = capsys.readouterr().out, load_manifest(built).shards
    [said] = re.findall(r"about ([\d.]+) MB of shards", printed)
    assert float(said) * 1e6 == pytest.approx(sum(shard.size for shard in shards), rel=0.3)
    assert f"about {len(shards)} shards\n" in printed and f" with {len(shards)} workers at " in printed
    assert "8 files, 0.1 MB on disk" in printed and "nothing was written" in printed
    assert not (tmp_path / "out").exists()


def test_the_text_of_many_small_compressed_files_is_estimated_about_right(
    options: BuildOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(0)
    (tmp_path / "raw").mkdir()
    for number in range(16):
        text = "\n\n".join(" ".join(f"{draw.randrange(5000):x}" for _ in range(300)) for _ in range(100))
        (tmp_path / "raw" / f"{number}.txt.xz").write_bytes(lzma.compress(text.encode()))
    changes = {"input": (tmp_path / "raw",), "sentences": "line", "dry_run": True}
    assert main(again(options, tmp_path / "out", **changes)) == 0
    printed = capsys.readouterr().out
    [said] = re.findall(r"about ([\d.]+) MB of text", printed)
    assert float(said) == pytest.approx(16 * len(text) / 1e6, rel=0.1)
    assert "0:00:00" not in printed


NOVEL = ["CHAPTER ONE", *["It was late, and nobody came to the door of the house by the river. " * 3] * 40]
ARTICLES = ["The river rises in the hills north of the town and runs south to the sea. " * 12] * 25


@pytest.mark.parametrize(
    ("name", "text", "changes", "warned"),
    [
        ("novel.txt", "\n\n".join(NOVEL), {}, True),
        ("novel.txt", "\n\n".join(NOVEL), {"documents": "file"}, False),
        ("novel.txt", "\n".join(NOVEL), {}, False),  # one paragraph per line: one document
        ("articles.txt", "\n\n".join(ARTICLES), {}, False),
        ("rows.jsonl", "\n".join(json.dumps({"text": text}) for text in NOVEL), {}, True),
        ("rows.jsonl", "\n".join(json.dumps({"text": text}) for text in NOVEL), {"documents": "file"}, False),
        ("rows.jsonl", "\n".join(json.dumps({"text": text}) for text in NOVEL), {"seq_length": 16}, False),
        ("novel.txt", "\n\n".join(NOVEL), {"packing": "full"}, False),
        ("few.txt", "\n\n".join(NOVEL[:10]), {}, False),
    ],
)
def test_a_warning_is_given_if_paragraphs_would_become_documents(
    options: BuildOptions,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    changes: dict[str, object],
    warned: bool,
) -> None:
    (tmp_path / name).write_text(text)
    changes = {"input": (tmp_path / name,), "sentences": "line", "seq_length": 128, **changes}
    assert main(again(options, tmp_path / "out", dry_run=True, **changes)) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WARNING: ")]
    assert len(warnings) == warned
    assert all(
        re.search(r"at most 203 characters.* \d\d\.\d% would be padding; use --documents file", line)
        for line in warnings
    )


@pytest.mark.parametrize("missing", [[], [None, ""]])
def test_rows_of_one_sentence_are_a_warning_and_become_one_document_with_no_word_lost(
    options: BuildOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: list[str | None]
) -> None:
    """BooksCorpus on the hub: a column of sentences, one after another through all books."""
    rows = [*missing, *(f"ka lo mi {'ne ' * (number % 7)}." for number in range(400))]
    table = tmp_path / "books.parquet"
    parquet.write_table(pyarrow.table({"text": rows}), table, row_group_size=100)
    manifests = {}
    for documents in ("blank_line", "file"):
        case = again(options, tmp_path / documents, input=(table,), documents=documents, shard_mb=1)
        assert main(case) == 0
        printed, manifests[documents] = capsys.readouterr().out, load_manifest(case.output)
        is_wasteful = documents == "blank_line"
        assert ("would be padding" in printed) == ("of the sequences is padding" in printed) == is_wasteful
        inspect(InspectOptions(folder=case.output))
        assert ("of the sequences is padding" in capsys.readouterr().out) == is_wasteful
    many, one = manifests["blank_line"], manifests["file"]
    assert many.totals.padding_share > 0.8 and one.totals.padding_share < 0.1
    assert many.books.word_pieces.read == one.books.word_pieces.read
    assert one.books.documents.read == 1 + missing.count(None)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(("encoding", "warned"), [("utf-8", False), ("latin-1", True)])
def test_a_corpus_in_another_encoding_is_a_warning(
    options: BuildOptions,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    encoding: str,
    warned: bool,
    dry_run: bool,
) -> None:
    text = " ".join(f"Im Jahr {year} baute man die Brücke." for year in range(200))
    (tmp_path / "de.txt").write_bytes(text.encode(encoding))
    changes = {"input": (tmp_path / "de.txt",), "sentences": "line", "held_out": 0.0, "dry_run": dry_run}
    assert main(again(options, tmp_path / "out", **changes)) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WARNING: ")]
    assert len(warnings) == warned
    assert all(f"200 of {len(text):,} characters were not UTF-8" in line and "iconv" in line for line in warnings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n".join(NOVEL), "with a single document, training runs without held-out text"),
        ("\n\n".join(NOVEL[:12]), "build into another --output with --held_out 0.17"),  # which probably holds some out
    ],
)
def test_a_corpus_too_small_to_hold_out_any_of_it_is_built_with_a_remark(
    options: BuildOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "in.txt").write_text(text)
    case = again(options, tmp_path / "out", input=(tmp_path / "in.txt",), held_out=1e-9)
    assert main(case) == 0
    assert said in capsys.readouterr().out
    assert not load_manifest(case.output).books.documents.held_out
    assert not (case.output / "held_out").exists()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--input", "no/such/folder"], "input"),
        (["--vocab", "no/such/vocab.txt"], "vocab"),
        (["--punkt", "no/such/model"], "punkt"),
        (["--output", "Makefile"], "output"),
        (["--ngram", "0.5", "0.1"], "ngram"),
        (["--held_out", "1.5"], "held_out"),
        (["--seq_length", "4"], "seq_length"),
        (["--packing", "tight"], "packing"),
        (["--sequence_length", "128"], "sequence_length"),
        (["--ngram", *["0.005"] * 200], "ngram: "),
        (["--input", "LOOP"], "input"),
        (["--output", "LOOP"], "output"),
        (["--vocab", "LOOP"], "vocab"),
        (["--input", "a\n\x1b[31m"], r"a\n\x1b[31m"),
        (["--seed", "9" * 5000], "seed"),
        (["--workers", "9" * 400], "workers: got '999"),
        (["--output", "CORPUS/out"], "lies inside the input"),
    ],
)
def test_a_user_error_is_one_line_that_names_its_field_and_exit_code_2(
    options: BuildOptions,
    tmp_path: Path,
    arguments: list[str],
    field: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    paths = {"LOOP": str(tmp_path / "loop"), "CORPUS/out": str(options.input[0] / "out")}
    arguments = [paths.get(word, word) for word in arguments]
    command = command_of(again(options, tmp_path / "out"))
    if arguments[0] in command:  # every option but the input is given once
        at = command.index(arguments[0])
        del command[at : at + 2]
    monkeypatch.setattr("sys.argv", [*command, *arguments])
    assert run_command(main, BuildOptions, None) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith("build_shards.py: error: ")
    assert field in errors


def test_damaged_input_stops_the_build_by_name_and_a_rerun_resumes(
    options: BuildOptions, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_prep.build_shards._SAMPLE", 1000)  # a larger one would reach the damage first
    folder = shutil.copytree(options.input[0], tmp_path / "in")
    last = folder / "zzz.txt.xz"
    last.write_bytes(lzma.compress(b"\n\n".join(b"Kalo mi ne %d." % number for number in range(20_000))))
    flip_bit(last)
    case = again(options, tmp_path / "out", input=(folder,), punkt=built / "punkt", shard_mb=0.1)
    with pytest.raises(ConfigError, match=r"zzz\.txt\.xz cannot be read to the end"):
        main(case)
    assert finished_shards(case.output)
    flip_bit(last)
    assert main(case) == 0


def test_a_full_disk_is_one_line_and_exit_code_2_leaves_no_part_of_a_file_and_a_rerun_resumes(
    options: BuildOptions, built: Path, tmp_path: Path
) -> None:
    """There is room for the ids of every shard, and none for its masks."""
    case = again(options, tmp_path / "out", workers=2, punkt=built / "punkt", mask_copies=200)
    limit = max(path.stat().st_size for path in built.glob("shard-?????.bin"))
    command = [*command_of(case), "--punkt", case.punkt, "--mask_copies", case.mask_copies]
    done = run_script(*command, preexec_fn=partial(limit_file_size, limit))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "File too large" in done.stderr and ".mask.bin" in done.stderr
    assert not list(case.output.rglob("*.tmp"))
    assert main(case) == 0
    assert inspect(InspectOptions(folder=case.output, verify=True, workers=1)) == 0


@pytest.mark.parametrize("wait", [0.3, 1.0])
def test_ctrl_c_while_workers_start_is_one_line(options: BuildOptions, tmp_path: Path, wait: float) -> None:
    for attempt in "abc":
        process = start_build(again(options, tmp_path / attempt, workers=2, shard_mb=0.003))
        while len(processes_below(process.pid)) < 3:  # with the one that cleans up behind the others
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(wait)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        if not errors.startswith("Exception ignored in"):  # Python loses a signal in a callback, as of its import locks
            break
    assert (process.returncode, errors) == (130, "interrupted\n")


def test_foreign_files_in_the_folder_of_a_build_stay(half_built: tuple[Path, BuildOptions], built: Path) -> None:
    _, case = half_built
    names = ("thesis.tmp", "held_out/thesis.tmp", "tokenizer/thesis.tmp")
    for name in names:
        (case.output / name).write_text("mine")
    (case.output / "shard-00007.bin.tmp").write_text("left by a kill")
    assert main(case) == 0
    assert {name: content for name, content in contents(case.output).items() if name.endswith(".tmp")} == dict.fromkeys(
        names, b"mine"
    )


def test_a_killed_worker_is_one_line_and_exit_code_1_and_a_rerun_resumes(
    options: BuildOptions, built: Path, tmp_path: Path
) -> None:
    process = start_build(again(options, tmp_path / "out", workers=2))
    wait_for(lambda: finished_shards(tmp_path / "out") > 0, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    os.kill(int(workers[0]), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert len(errors.splitlines()) == 1, errors
    assert "run the same command to resume" in errors
    assert main(again(options, tmp_path / "out")) == 0
    assert contents(tmp_path / "out") == contents(built)


def test_names_that_are_not_utf8_or_contain_control_characters_are_built_and_escaped(
    options: BuildOptions, built: Path, tmp_path: Path
) -> None:
    texts = options.input[0].joinpath("part-0.txt").read_text().split("\n\n")
    names = [os.fsdecode(name) for name in (b"caf\xe9", b"caf\xe9.parquet", b"a\n\x1b[31mb.txt")]
    folder = tmp_path / os.fsdecode(b"in\xff")
    folder.mkdir()
    (folder / names[0]).write_text(texts[0])
    with (folder / names[1]).open("wb") as file:
        parquet.write_table(pyarrow.table({"text": texts}), file)
    (folder / names[2]).write_text(texts[1])
    output = tmp_path / os.fsdecode(b"out\x1b[31m\xff")
    done = run_script(*command_of(again(options, output, input=(folder,), workers=2)))
    assert done.returncode == 0, done.stderr
    assert load_manifest(output).input_files == 3
    assert inspect(InspectOptions(folder=output, verify=True, workers=1)) == 0
    seen = run_script("data_prep/inspect_shards.py", output, "--show", 1)
    assert seen.returncode == 0, seen.stderr
    assert r"0 in\xff: 14 documents" in seen.stdout
    (folder / names[0]).write_bytes(b"\x1f\x8b damaged")
    refused = run_script(*command_of(again(options, tmp_path / "other", input=(folder,))))
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert all((said.stdout + said.stderr).replace("\n", "").isprintable() for said in (done, seen, refused))


def build_malformed(seed: int, options: BuildOptions, built: Path, folder: Path) -> bool:
    """Builds malformed input; returns True if it was built, False if it was refused in one clear line."""
    (folder / "in").mkdir(parents=True)
    path, changes = malformed_file(seed, folder / "in")
    try:
        assert main(again(options, folder / "out", input=(folder / "in",), punkt=built / "punkt", **changes)) == 0
    except ConfigError as error:
        assert all("\n" not in problem and len(problem) < 1000 for problem in error.problems), error
        return False
    manifest = load_manifest(folder / "out")
    assert manifest.books.balances, path
    assert manifest.books.word_pieces.train == manifest.totals.word_pieces
    assert not [problem for shard in manifest.shards for problem in file_problems(folder / "out", shard)]
    for shard in manifest.shards:
        assert not any(problems_of(rows, manifest) for rows in read_rows(folder / "out", shard, manifest))
    return True


@pytest.mark.parametrize("first", [0, pytest.param(60, marks=pytest.mark.long)])
def test_malformed_input_is_built_and_accounted_for_or_refused_in_one_clear_line(
    options: BuildOptions, built: Path, tmp_path: Path, first: int
) -> None:
    count = 60 if first == 0 else 540
    ends = [build_malformed(seed, options, built, tmp_path / str(seed)) for seed in range(first, first + count)]
    assert 0.2 < np.mean(ends) < 0.8, "too few cases of one kind"


def test_the_real_corpus_builds_with_the_real_libraries(shared_data: Path, tmp_path: Path) -> None:
    novels = sorted((shared_data / "books" / "eltec").glob("*.txt.xz"))[:2]
    assert (
        main(
            BuildOptions(
                input=tuple(novels),
                output=tmp_path / "out",
                vocab=str(shared_data / "vocab"),
                punkt=shared_data / "nltk_data",
                seq_length=128,
                workers=1,
                shard_mb=0.5,
                held_out=0.0,
                documents="file",
            )
        )
        == 0
    )
    manifest = load_manifest(tmp_path / "out")
    assert manifest.totals.unknown_share < 0.001
    assert manifest.totals.padding_share < 0.05
    assert inspect(InspectOptions(folder=tmp_path / "out", verify=True, workers=1)) == 0
    assert np.allclose(np.array(manifest.totals.ngrams) / sum(manifest.totals.ngrams), (0.8, 0.1, 0.1), atol=0.005)
