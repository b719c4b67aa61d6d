"""The road of docs/guide/reproduce.md at about a thousandth: its commands in order, with smaller sizes and data."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from pretrain.presets import ROWS
from tests.conftest import REPOSITORY

ROWS_OF_BOOKS, EXAMPLES, SEQUENCES = 47_000, 32, 64
WIDTHS = {"small": ("hidden_size=32", "heads=1"), "base": ("hidden_size=768", "heads=12")}
"""Fine-tuning takes a model of base's width for base."""
SMALLER = [
    *("--deepspeed_config", "zero0_fp32"),
    *("--set", "model.layers=1", "model.intermediate_size=64", "model.embedding_size=32"),
    *("model.generator_hidden_size=16", "model.max_positions=128", "optim.steps=24", "optim.warmup_steps=2"),
    *("batch_size=8", "log_every=8", "evaluate_every=24", "checkpoint_every=8", "keep_every=8"),
]
NAMES = {"small": [name for name in [*ROWS][1:10] if name != "HP_Loss gamma=1"], "base": [*ROWS][1:4]}
"""The paper's rows that are trained: not BERT, and gamma 1 is HP_Loss + Focal."""


def run(script: str, *arguments: object, codes: tuple[int, ...] = (0,)) -> str:
    """Runs a command of the page; returns what it printed."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode in codes, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def text_of(paths: list[Path], command: str = "xzcat") -> Iterator[str]:
    for path in paths:
        yield subprocess.run([command, path], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def corpora(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet as on the hub: a row per article of Wikipedia, and a row per sentence of books."""
    folder = tmp_path_factory.mktemp("hub")
    articles = next(text_of(sorted((shared_data / "wiki").glob("enwiki-A*.xz"))[:1])).split("\n\n")[:400]
    parquet.write_table(pyarrow.table({"text": articles}), folder / "wiki.parquet")
    novels = text_of(sorted((shared_data / "books/novels").glob("*.xz")))
    sentences = (part for novel in novels for part in re.split(r"(?<=[.!?])\s+", novel) if part.strip())
    rows = [" ".join(sentence.split()) for sentence in islice(sentences, ROWS_OF_BOOKS)]
    parquet.write_table(pyarrow.table({"text": rows}), folder / "books.parquet")
    return folder


@pytest.fixture(scope="module")
def tasks(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's TSV files and SQuAD's, with a few examples each; QQP has the pairs of MRPC."""
    folder = tmp_path_factory.mktemp("tasks")
    for task in sorted((shared_data / "glue").iterdir()):
        (folder / task.name).mkdir()
        for file in task.glob("*.tsv"):
            lines = file.read_text().splitlines(keepends=True)
            (folder / task.name / file.name).write_text("".join(lines[: EXAMPLES + 1]))
    (folder / "QNLI/train.tsv").write_text((folder / "QNLI/dev.tsv").read_text())
    (folder / "QQP").mkdir()
    for split in ("train", "dev"):
        pairs = [line.split("\t") for line in (folder / f"MRPC/{split}.tsv").read_text().splitlines()[1:]]
        rows = [f"{n}\t{2 * n}\t{2 * n + 1}\t{one}\t{two}\t{label}" for n, (label, _, _, one, two) in enumerate(pairs)]
        header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
        (folder / f"QQP/{split}.tsv").write_text("\n".join([header, *rows]) + "\n")
    (folder / "squad").mkdir()
    for split in ("train", "dev"):
        (found,) = (shared_data / "squad/article_split").glob(f"{split}*v2.0*.json")
        whole = json.loads(found.read_text())
        articles = [article | {"paragraphs": article["paragraphs"][:2]} for article in whole["data"][:2]]
        (folder / f"squad/{split}-v2.0.json").write_text(json.dumps(whole | {"data": articles}))
    return folder


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_the_papers_road_leads_to_every_table_and_figure(
    corpora: Path, tasks: Path, shared_data: Path, tmp_path: Path
) -> None:
    options = ("--vocab", shared_data / "vocab/vocab.txt", "--seq_length", 128, "--workers", 2)
    wiki, books, runs, scores = (tmp_path / name for name in ("wiki", "books", "runs", "scores"))
    run("data_prep/build_shards.py", "--input", corpora / "wiki.parquet", "--output", wiki, *options, "--held_out", 0.1)
    sentences = ("data_prep/build_shards.py", "--input", corpora / "books.parquet", *options, "--held_out", 0)
    before = run(*sentences, "--output", tmp_path / "apart")
    after = run(*sentences, "--output", books, "--documents", "file")
    assert re.search(r"would be padding; use --documents file.*of the sequences is padding", before, re.DOTALL)
    assert "padding" not in after
    assert "verified" in run("data_prep/inspect_shards.py", books, "--verify")
    for size, names in NAMES.items():
        for number, name in enumerate(names):
            folder = runs / f"{size}-{number}"
            start = ("--preset", size, "--row", name, "--data", wiki, books, "--output", folder)
            run("pretrain/run.py", *start, *SMALLER, *(f"model.{part}" for part in WIDTHS[size]))
            exported = tmp_path / "exported" / folder.name
            run("pretrain/export.py", folder, exported)
            one = ("--model", exported, "--seeds", 1, "--epochs", 1, "--max_length", 64, "--keep", "none")
            of_task = [] if number < 3 else ["--task", "MNLI"]
            run("finetune/run_glue.py", *one, "--data_dir", tasks, *of_task, "--output", scores / "glue")
            question = ("--max_question", 24, "--stride", 16)
            run("finetune/run_squad.py", *one, *question, "--data_dir", tasks / "squad", "--output", scores / "squad")
    grid = ("--model", tmp_path / "exported/base-1", "--data_dir", tasks, "--task", "RTE", "--grid", "paper")
    tried = run("finetune/run_glue.py", *grid, "--max_length", 64, "--keep", "none", "--output", scores / "grid")
    assert "90 of 90 runs to do" in tried
    run("pretrain/doctor.py", runs / "small-1", codes=(0, 2, 3))  # so few steps have no verdict
    report = run("finetune/report.py", scores / "glue", scores / "squad", scores / "grid")
    tables = dict(re.findall(r"^## (.*?)\n\n(.*?)\n\n", report, re.DOTALL | re.MULTILINE))
    ours = [line for line in tables["GLUE"].splitlines() if "exported/" in line]
    assert sum(line.rstrip(" |").rpartition(" ")[2] != "–" for line in ours) == 6, "an average per main row"
    assert "paper, small: " in tables["GLUE"] and "paper, base: " in tables["GLUE"]
    assert sum("exported/small" in line for line in tables["Ablation"].splitlines()) == len(NAMES["small"])
    evaluated = ("--sequences", SEQUENCES)
    run("pretrain/evaluate.py", runs / "small-0", runs / "small-1", "--output", tmp_path / "compared", *evaluated)
    run("pretrain/evaluate.py", runs / "small-1", "--steps", "all", *evaluated)
    figures = (tmp_path / "compared/confidence.png", *(runs / "small-1/evaluation").glob("*.png"))
    assert {path.name for path in figures} == {"confidence.png", "comparison.png", "steps.png"}
