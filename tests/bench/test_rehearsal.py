"""Claims about the rehearsal: its text has no duplicates, its measurements are right, and every stage runs."""

import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

from bench.enlarge import enlarge
from bench.resources import measure, start
from bench.two_hosts import missing
from data_prep.formats import Format, Reading, parse
from tests.conftest import REPOSITORY

MB = 10**6
HUNGRY = """
import mmap, time
held = b"x" * 200_000_000
files = [open("/dev/null") for _ in range(40)]
open("file", "wb").write(bytes(5_000_000))
print("ready", flush=True)
time.sleep(1.5)
"""


@pytest.fixture
def sources(tmp_path: Path) -> tuple[list[Path], Path]:
    """Two files of articles, one of them a single word, and two books."""
    wiki = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.xz"
        words = " ".join(f"{name}{number}" for number in range(100))
        articles = [f'<doc id="{number}" title="t">\n{text}\n</doc>\n' for number, text in enumerate([words, "stub"])]
        path.write_bytes(lzma.compress("".join(articles).encode()))
        wiki.append(path)
    books = tmp_path / "books"
    books.mkdir()
    for name in ("one", "two"):
        (books / f"{name}.txt.xz").write_bytes(lzma.compress(f"{name} ".encode() * 50))
    return wiki, books


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.*"))}


def test_no_two_documents_of_an_enlarged_corpus_are_equal(sources: tuple[list[Path], Path], tmp_path: Path) -> None:
    wiki, books = sources
    written = enlarge(wiki, books, tmp_path / "raw", 20_000, seed=0, processes=1)
    files = contents(tmp_path / "raw")
    assert written == sum(map(len, files.values())) >= 20_000
    found = []
    for name, content in files.items():
        form = Format.JSON_LINES if name.endswith(".jsonl") else Format.WIKI_EXTRACTOR
        found += [document.content for document in parse(form, content, 0, Reading())]
    assert len(found) == 6 * len(list((tmp_path / "raw/books").iterdir()))
    assert len(set(found)) == len(found)


def test_an_enlarged_corpus_does_not_depend_on_processes_or_interruptions(
    sources: tuple[list[Path], Path], tmp_path: Path
) -> None:
    wiki, books = sources
    enlarge(wiki, books, tmp_path / "one", 20_000, seed=0, processes=1)
    enlarge(wiki, books, tmp_path / "two", 5_000, seed=0, processes=2)
    enlarge(wiki, books, tmp_path / "two", 20_000, seed=0, processes=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_memory_descriptors_disk_and_times_of_lines_are_measured(tmp_path: Path) -> None:
    found = measure(lambda: start([sys.executable, "-c", HUNGRY], tmp_path), tmp_path)
    assert found.code == 0
    assert [line.text for line in found.lines] == ["ready"]
    usage = found.usage
    assert found.lines[0].seconds + 1.5 <= usage.seconds
    assert 200 * MB < usage.largest.value < 300 * MB and usage.together == usage.largest.value
    assert usage.processes == 1 and usage.cpu_seconds > 0
    assert 43 <= usage.descriptors.value < 60
    assert 5 * MB <= usage.disk < 6 * MB


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_small_rehearsal_runs_to_the_end_and_its_report_is_complete(shared_data: Path, tmp_path: Path) -> None:
    if problem := missing():
        pytest.skip(problem)
    command = [sys.executable, "bench/rehearsal.py", "--sources", shared_data, "--work", tmp_path]
    done = subprocess.run(
        [*command, "--gigabytes", "0.05", "--preset", "small"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "rehearsal.md").read_text()
    assert "Weights, moments and state after the second step are bitwise equal." in report
    assert "ds_configs/zero1_bf16.json" in report and "verified: no problem found" in report
    assert "Processes: 0." in report
    assert json.loads((tmp_path / "stages/killed.json").read_text())["code"] != 0
    assert not (tmp_path / "data").exists() and (tmp_path / "exported/model.safetensors").exists()
