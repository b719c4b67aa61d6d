"""Claims about a machine without DeepSpeed, MPI and megatron-core, where one process must do without them."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from finetune.running.records import read_records
from tests.conftest import REPOSITORY

WORDS = ["a", "the", "cat", "dog", "mat", "tree", "sat", "ran", "under", "on", ".", "and", "it", "was", "red"]
TEXT = "\n\n".join(f"The {one} sat on the {other}. It {ran} on." for one, other, ran in product(WORDS[:7], repeat=3))
TINY = "--preset tiny --data shards --output run --set optim.steps=2 optim.warmup_steps=1 batch_size=4"

Environment = dict[str, str]


def run(command: str, folder: Path, laptop: Environment) -> subprocess.CompletedProcess[str]:
    """Runs `python SCRIPT ...` as on such a machine."""
    script, *arguments = command.split()
    typed = [sys.executable, REPOSITORY / script, *arguments]
    return subprocess.run(typed, cwd=folder, env=laptop, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, laptop: Environment) -> Path:
    """Shards built on such a machine."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    (folder / "text.txt").write_text(TEXT)
    options = "--input text.txt --vocab vocab.txt --output shards --seq_length 16 --held_out 0.3"
    done = run(f"data_prep/build_shards.py {options}", folder, laptop)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("package", ["deepspeed", "mpi4py", "megatron.core"])
def test_such_a_machine_lacks_the_packages(package: str, laptop: Environment) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {package}"], env=laptop, capture_output=True, text=True)
    assert f"No module named '{package.partition('.')[0]}'" in done.stderr


def test_shards_are_verified_without_megatrons_reader(folder: Path, laptop: Environment) -> None:
    done = run("data_prep/inspect_shards.py shards --verify", folder, laptop)
    assert done.returncode == 0, done.stderr
    assert "megatron-core is not installed" in done.stdout and "no problem found" in done.stdout


@pytest.mark.long
def test_a_run_is_trained_evaluated_exported_and_fine_tuned(folder: Path, laptop: Environment) -> None:
    (folder / "CoLA").mkdir()
    for name in ("train", "dev"):
        (folder / "CoLA" / f"{name}.tsv").write_text("made\t1\t\tthe cat sat .\nmade\t0\t*\tcat the sat .\n" * 4)
    for command in (
        f"pretrain/run.py {TINY}",
        "pretrain/evaluate.py run",
        "pretrain/export.py run out",
        "finetune/run_glue.py --model out --task CoLA --data_dir . --output scores --seeds 1 --epochs 1",
        "finetune/report.py scores",
    ):
        done = run(command, folder, laptop)
        assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (record,) = read_records(folder / "scores" / "results.jsonl")
    assert record.world_size == 1


def test_a_job_that_needs_deepspeed_says_what_to_do_in_one_line(folder: Path, laptop: Environment) -> None:
    bf16 = TINY.replace("output run", "output bf16 --deepspeed_config zero1_bf16")
    done = run(f"pretrain/run.py {bf16}", folder, laptop)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "No module named 'deepspeed'" in line
    assert line.endswith("--deepspeed_config ds_configs/zero0_fp32.json, which does not need it")
