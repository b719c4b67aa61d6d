"""Claims about cluster/curate_datatrove.py: user errors are one line; its text is filtered, unique and builds shards.

Whole runs need datatrove: here, or in another environment, ELECTRA_SAMPLER_DATATROVE_PYTHON=VENV/bin/python.
"""

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.manifest import load_manifest
from tests.cluster.runs import wait_for
from tests.cluster.two_hosts import Slurm
from tests.conftest import REPOSITORY

PYTHON = os.environ.get("ELECTRA_SAMPLER_DATATROVE_PYTHON", sys.executable)
SCRIPT = REPOSITORY / "cluster/curate_datatrove.py"


def curate(*options: object, python: str = PYTHON, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, SCRIPT, *map(str, options)],
        env=os.environ | {"HF_HUB_OFFLINE": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=1500,
    )


def assert_one_clear_line(process: subprocess.CompletedProcess[str], *words: str) -> None:
    (line,) = process.stderr.splitlines()
    assert process.returncode == 2
    assert line.startswith("curate_datatrove.py: error: ")
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", ("--input", "--output")),
        ("--input in --output out --filter c5", ("filter", "'c5'", "'gopher', 'c4' or 'fineweb'")),
        ("--input in --output out --executor slurm", ("partition", "sinfo")),
        ("--input in --output out --partition cpu", ("partition", "'cpu'", "local")),
        ("--input in --output out --sbatch account=mine", ("sbatch", "slurm")),
        ("--input in --output out --executor slurm --partition cpu --sbatch account", ("sbatch", "'account'", "KEY=")),
        ("--input in --output out --language en", ("language", "--language_model")),
        ("--input in --output out --language en --language_model no/such.bin", ("language_model", "no/such.bin")),
        ("--input in --output out --decontaminate no/such.tsv", ("decontaminate", "no/such.tsv")),
        ("--input in --output out --tasks 0", ("tasks", "got '0'")),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_written(
    options: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_clear_line(curate(*options.split(), python=sys.executable), *words)
    assert not [*tmp_path.iterdir()]


def test_without_datatrove_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "datatrove.py").write_text("raise ImportError")
    process = curate("--input", tmp_path, "--output", tmp_path / "out", python=sys.executable, PYTHONPATH=str(tmp_path))
    assert_one_clear_line(process, "lacks a package", "pip install")
    assert not (tmp_path / "out").exists()


# Whole runs

LANGUAGE = """
import sys, fasttext
letters = {"minn": 1, "maxn": 2, "dim": 4, "bucket": 1000}
fasttext.train_supervised(sys.argv[1], lr=1.0, epoch=20, thread=1, verbose=0, **letters).save_model(sys.argv[2])
"""
PAGES = """
import json, sys
from io import BytesIO
import pyarrow
from pyarrow import parquet
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

rows = [json.loads(line) for line in open(sys.argv[1])]
parquet.write_table(pyarrow.Table.from_pylist([{"content": row["text"]} for row in rows]), sys.argv[2])
with open(sys.argv[3], "wb") as file:
    writer = WARCWriter(file, gzip=True)
    for row in rows:
        paragraphs = "".join(f"<p>{part}</p>" for part in row["text"].split("\\n"))
        page = f"<html><body><nav><a href='/'>Home</a></nav><article>{paragraphs}</article></body></html>".encode()
        headers = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], protocol="HTTP/1.1")
        url = "http://example.org/" + row["id"]
        writer.write_record(writer.create_warc_record(url, "response", payload=BytesIO(page), http_headers=headers))
"""


def prose(source: random.Random, sentences: int, letters: str = "aeioulmnrst") -> str:
    """Text that every filter keeps: varied words, with a common one before each third."""
    common = ("the", "of", "and", "to", "with", "that", "have", "be")
    words = ["".join(source.choices(letters, k=source.randint(3, 9))) for _ in range(9 * sentences)]
    for place in range(0, len(words), 3):
        words[place] = f"{source.choice(common)} {words[place]}"
    lines = [" ".join(words[start : start + 9]).capitalize() + "." for start in range(0, len(words), 9)]
    return "\n".join(" ".join(lines[start : start + 5]) for start in range(0, sentences, 5))


@pytest.fixture(scope="module")
def datatrove() -> str:
    """A Python with datatrove; tests that need it are skipped if there is none."""
    blocks = "import datatrove.pipeline.filters, ray, spacy, warcio, orjson"
    tried = subprocess.run([PYTHON, "-c", blocks], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(
            f"{PYTHON} has no datatrove ({tried.stderr.splitlines()[-1]}); set ELECTRA_SAMPLER_DATATROVE_PYTHON"
        )
    return PYTHON


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files: 30 documents, 5 copies, 5 near copies, 5 that repeat themselves, 5 of symbols, 3 with a question."""
    folder, source = tmp_path_factory.mktemp("crawl"), random.Random(0)
    rows = {f"good-{number}": prose(source, 30) for number in range(30)}
    for number in range(5):
        rows[f"copy-{number}"] = rows[f"good-{number}"]
        words = rows[f"good-{number + 5}"].split(" ")
        words[source.randrange(len(words))] = "another"
        rows[f"near-{number}"] = " ".join(words)
        rows[f"repeats-{number}"] = "Buy the cheap watches of our shop. " * 60
        rows[f"symbols-{number}"] = " ".join(f"#{source.random()}" for _ in range(200))
    question = "Which of the nine rivers that rise beyond the northern hills reaches the sea first of all?"
    (folder / "quiz.json").write_text(json.dumps({"data": [{"question": question, "id": "1"}]}))
    for number in range(3):
        rows[f"quiz-{number}"] = f"{prose(source, 20)}\n{question.upper()}\n{prose(source, 20)}"
    texts = [{"id": name, "text": text} for name, text in rows.items()]
    source.shuffle(texts)
    (folder / "pages").mkdir()
    for number in range(3):
        lines = (json.dumps(row) + "\n" for row in texts[number::3])
        (folder / "pages" / f"{number}.jsonl").write_text("".join(lines))
    return folder


def options_for(crawl: Path, output: Path) -> list[str]:
    places = ["--input", crawl / "pages", "--output", output, "--decontaminate", crawl / "quiz.json"]
    return [*map(str, places), "--tasks", "2", "--workers", "2", "--keep_removed"]


def rows_in(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl.gz")) for line in gzip.open(path)]


def names_in(folder: Path) -> set[str]:
    return {str(row["id"]) for row in rows_in(folder)}


@pytest.fixture(scope="module")
def curated(datatrove: str, crawl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("curated") / "out"
    process = curate(*options_for(crawl, output))
    assert process.returncode == 0, process.stderr
    assert "53 documents read = 30 kept + removed: " in process.stdout
    return output


@pytest.mark.long
def test_one_of_each_group_of_copies_stays_and_junk_goes(curated: Path) -> None:
    kept = names_in(curated / "text")
    for number in range(5):
        assert len(kept & {f"good-{number}", f"copy-{number}"}) == 1
        assert len(kept & {f"good-{number + 5}", f"near-{number}"}) == 1
    assert kept >= {f"good-{number}" for number in range(10, 30)}
    assert not [name for name in kept if name.startswith(("repeats", "symbols", "quiz"))]


@pytest.mark.long
def test_documents_that_share_text_with_an_evaluation_set_are_removed_and_listed(curated: Path) -> None:
    removed = rows_in(curated / "removed/decontamination")
    assert {row["id"] for row in removed} == {"quiz-0", "quiz-1", "quiz-2"}
    assert {row["metadata"]["contaminated_task"] for row in removed} == {"0-quiz"}


@pytest.mark.long
def test_the_same_command_only_repeats_what_is_missing_and_other_settings_are_refused(
    curated: Path, crawl: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    shutil.copytree(curated, output)
    first, second = (output / "text" / f"0000{number}.jsonl.gz" for number in range(2))
    kept, written = rows_in(output / "text"), first.stat().st_mtime_ns
    (output / "logs/5-text/completions/00001").unlink()
    second.unlink()
    process = curate(*options_for(crawl, output))
    assert "53 documents read = 30 kept" in process.stdout, process.stderr
    assert rows_in(output / "text") == kept
    assert first.stat().st_mtime_ns == written
    assert_one_clear_line(curate(*options_for(crawl, output), "--filter", "c4"), "filter: differs", "settings.json")
    (crawl / "pages" / "3.jsonl").write_text("")
    try:
        assert_one_clear_line(curate(*options_for(crawl, output)), "input: differs")
    finally:
        (crawl / "pages" / "3.jsonl").unlink()


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--input none", ("input", "none", "**/*.json*")),
        ("--input pages --format warc", ("input", "pages", "**/*.warc.gz")),
        ("--input pages --tasks 4", ("tasks", "got 4", "at most 3")),
        ("--input . --output pages/out", ("output", "inside the input")),
        ("--input pages --decontaminate short.tsv", ("decontaminate", "short.tsv", "12 words")),
        ("--input pages --decontaminate cut.json", ("decontaminate", "cut.json", "not JSON")),
    ],
)
def test_a_wrong_value_is_named_before_anything_is_written(
    options: str, words: tuple[str, ...], datatrove: str, crawl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(crawl / "pages", tmp_path / "pages")
    (tmp_path / "short.tsv").write_text("A short sentence.\t1\n")
    (tmp_path / "cut.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    given = options if "--output" in options else f"{options} --output out"
    assert_one_clear_line(curate(*given.split()), *words)
    assert {path.name for path in tmp_path.rglob("*")}.isdisjoint({"out", "lock"})


@pytest.mark.long
def test_shards_are_built_from_the_output(curated: Path, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "of", "and"]))
    options = ["--input", curated / "text", "--vocab", tmp_path / "vocab.txt", "--output", tmp_path / "shards"]
    command = [
        sys.executable,
        REPOSITORY / "data_prep/build_shards.py",
        *options,
        "--seq_length",
        "64",
        "--workers",
        "1",
    ]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert load_manifest(tmp_path / "shards").books.documents.read == 30


@pytest.mark.long
def test_parquet_and_warc_give_the_text_of_json_lines_and_another_language_is_removed(
    datatrove: str, tmp_path: Path
) -> None:
    source = random.Random(1)
    rows = [{"id": f"english-{number}", "text": prose(source, 30)} for number in range(6)]
    rows += [{"id": f"other-{number}", "text": prose(source, 30, "bcdfghjkpqvxyz")} for number in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labelled = (f"__label__{row['id'].split('-')[0]} " + row["text"].replace("\n", " ") + "\n" for row in rows * 20)
    (tmp_path / "labelled").write_text("".join(labelled))
    subprocess.run([datatrove, "-c", LANGUAGE, tmp_path / "labelled", tmp_path / "model.bin"], check=True)
    subprocess.run(
        [datatrove, "-c", PAGES, *(tmp_path / f"rows.{end}" for end in ("jsonl", "parquet", "warc.gz"))], check=True
    )
    texts = []
    for form in ("jsonl", "parquet", "warc"):
        options = ["--format", form, "--language", "english", "--language_model", tmp_path / "model.bin"]
        if form == "parquet":
            options += ["--text_column", "content"]
        process = curate("--input", f"{tmp_path}/rows.{form}*", "--output", tmp_path / form, "--workers", 1, *options)
        assert "6 kept + removed: 3 by fastText" in process.stdout, process.stderr
        texts.append([str(row["text"]).split() for row in rows_in(tmp_path / form / "text")])
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 6


@pytest.mark.long
def test_two_workers_of_ray_keep_the_same_text(curated: Path, crawl: Path, tmp_path: Path) -> None:
    limits = {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(10**8), "RAY_USAGE_STATS_ENABLED": "0"}
    memory = ["--memory_gb", "1", "--clustering_memory_gb", "1"]
    process = curate(*options_for(crawl, tmp_path / "out"), "--executor", "ray", *memory, **limits)
    assert process.returncode == 0, process.stderr
    assert rows_in(tmp_path / "out/text") == rows_in(curated / "text")


@pytest.mark.long
def test_slurm_runs_the_stages_one_after_the_other_and_keeps_the_same_text(
    slurm: Slurm, curated: Path, crawl: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    where = ["--executor", "slurm", "--partition", "all", "--memory_gb", "1", "--clustering_memory_gb", "1"]
    command = [PYTHON, SCRIPT, *options_for(crawl, output), *where, "--sbatch", "comment=test"]
    assert "submitted jobs" in slurm.run(*map(str, command))
    again = slurm.hosts.start(command, tmp_path, **slurm.environment)
    refusal, _ = again.communicate()
    assert again.returncode == 2
    assert "in the queue" in refusal
    wait_for(lambda: not slurm.run("squeue", "--noheader"), 1500)
    assert "53 documents read = 30 kept" in slurm.run(*map(str, command))
    assert rows_in(output / "text") == rows_in(curated / "text")
