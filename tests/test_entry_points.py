"""Claims about every entry point: its help fits on a screen, and each user error is one clear line."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import warm
from tests.conftest import REPOSITORY, free_port
from tests.scripts import HEAVY, SCREEN, SCRIPTS

# A path that does not exist, for each option that takes one.
WRONG_PATHS = [
    "data_prep/build_shards.py --input no/such --vocab vocab.txt",
    "data_prep/build_shards.py --input text.txt --vocab no/such/vocab.txt --output out",
    "data_prep/inspect_shards.py no/such",
    "data_prep/train_vocab.py --input no/such",
    "pretrain/run.py --data no/such",
    "pretrain/evaluate.py no/such",
    "pretrain/doctor.py no/such",
    "pretrain/export.py no/such out",
    "pretrain/page.py no/such",
    "finetune/run_glue.py --model no/such --task CoLA",
    "finetune/run_squad.py --model no/such",
    "finetune/run_tagging.py --model no/such --task NER --data_dir .",
    "finetune/show.py no/such",
    "finetune/report.py no/such",
]
# An invalid file, for each option that takes one: not text, not JSON, not a model.
UNREADABLE = [
    "data_prep/build_shards.py --input text.txt --vocab junk.txt --output out",
    "data_prep/inspect_shards.py junk",
    "pretrain/run.py --data junk",
    "pretrain/evaluate.py junk",
    "pretrain/doctor.py junk",
    "pretrain/export.py junk out",
    "pretrain/page.py junk",
    "finetune/run_glue.py --model junk --task CoLA",
    "finetune/run_squad.py --model junk",
    "finetune/run_tagging.py --model junk --task NER --data_dir .",
    "finetune/show.py junk",
    "finetune/report.py junk",
]
NOT_FOR_TRAINING = set(HEAVY) - {"torch", "deepspeed"} | {
    "accelerate",
    "pandas",
    "pyarrow",
    "mpi4py",
    "torch._inductor.compile_fx",  # imported by one of DeepSpeed's optimizers
}
JUNK_FILES = (
    "manifest.json",
    "run.json",
    "config.json",
    "model.safetensors",
    "results.jsonl",
    "tokenizer.json",
    "vocab.txt",
)
JUNK = b"\xff\xfe\x00{junk"


def run(command: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs `python SCRIPT ...` in `folder`, which has no default input; returns the finished process.

    A new interpreter, so that `stderr` also has what its imports print.
    """
    script, *arguments = command.split()
    environment = os.environ | {"COLUMNS": str(SCREEN[1]), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *options, str(REPOSITORY / script), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def run_warm(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The same in a process that has already imported the project and PyTorch and its like."""
    script, *arguments = command.split()
    return warm.run(script, *arguments, cwd=folder, env={"COLUMNS": str(SCREEN[1])})


def assert_one_clear_line(process: subprocess.CompletedProcess[str], *words: str) -> None:
    lines = process.stderr.splitlines()
    assert process.returncode == 2, process.stderr
    assert len(lines) == 1, process.stderr
    assert ".py: error: " in lines[0]
    assert all(word in lines[0] for word in words), lines[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a vocabulary, and junk under every name that an entry point may read."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nthe\n")
    (tmp_path / "text.txt").write_text("The text of a document.\n")
    (tmp_path / "junk").mkdir()
    for path in (tmp_path / "junk.txt", *(tmp_path / "junk" / name for name in JUNK_FILES)):
        path.write_bytes(JUNK)
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_fits_on_a_screen_and_needs_no_heavy_import(script: str, tmp_path: Path) -> None:
    process = run(f"{script} --help", tmp_path, "-X", "importtime")
    lines = process.stdout.splitlines()
    assert process.returncode == 0
    assert len(lines) <= SCREEN[0]
    assert max(map(len, lines)) <= SCREEN[1]
    errors = process.stderr.splitlines()
    assert all(line.startswith("import time:") for line in errors)
    assert not {line.split("|")[-1].strip() for line in errors}.intersection(HEAVY)


@pytest.mark.parametrize(
    "command", ["pretrain/run.py", "finetune/run_glue.py --model m", "finetune/run_squad.py --model m"]
)
def test_settings_are_listed_in_columns_without_data_or_model(command: str, tmp_path: Path) -> None:
    process = run_warm(f"{command} --list_settings --set deepspeed.zero_optimization.stage=2", tmp_path)
    lines = process.stdout.splitlines()
    assert (process.returncode, process.stderr) == (0, "")
    assert max(map(len, lines)) <= 120
    (stage,) = [line.split() for line in lines if line.startswith("deepspeed.zero_optimization.stage ")]
    assert stage[1] == "2"
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_unknown_option_is_named(script: str, tmp_path: Path) -> None:
    assert_one_clear_line(run_warm(f"{script} --no_such_option=1 a b --model=m", tmp_path), "--no_such_option")


@pytest.mark.parametrize("command", WRONG_PATHS)
def test_a_nonexistent_path_is_named(command: str, folder: Path) -> None:
    """The first of each package with heavy imports runs in a new interpreter: they print nothing either."""
    new = command.startswith(
        ("data_prep", "electra_sampler/quickstart", "pretrain/run", "pretrain/page", "finetune/run_glue")
    )
    assert_one_clear_line((run if new else run_warm)(command, folder), "no/such")


@pytest.mark.parametrize("command", UNREADABLE)
def test_an_unreadable_file_is_named(command: str, folder: Path) -> None:
    assert_one_clear_line(run_warm(command, folder), "junk")


def test_training_ranks_import_only_what_they_use_and_only_the_first_imports_tensorboard(
    shards_folder: Path, tmp_path: Path
) -> None:
    options = f"--preset tiny --data {shards_folder} --set optim.steps=2 optim.warmup_steps=1 batch_size=4"
    command = [sys.executable, "-X", "importtime", str(REPOSITORY / "pretrain/run.py"), *options.split()]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    log = tmp_path / "log"
    with log.open("a") as file:
        ranks = [
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env=os.environ | job | {"RANK": rank, "LOCAL_RANK": rank},
                stdout=subprocess.DEVNULL,
                stderr=file,
            )
            for rank in ("0", "1")
        ]
        codes = [rank.wait(timeout=240) for rank in ranks]
    lines = log.read_text().splitlines()
    assert codes == [0, 0], "\n".join(line for line in lines if "|" not in line)
    imported = Counter(line.split("|")[-1].strip() for line in lines if "|" in line)
    assert not NOT_FOR_TRAINING.intersection(imported)
    assert imported["pretrain.training.train"] == 2
    assert imported["torch.utils.tensorboard.writer"] == 1


def test_an_unreadable_deepspeed_file_is_named(shards_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_bytes(JUNK)
    command = f"pretrain/run.py --preset tiny --data {shards_folder} --deepspeed_config ds.json --dry_run"
    assert_one_clear_line(run_warm(command, tmp_path), "ds.json")
