"""Claims about machines unlike this one, imitated: older CPUs, one core, little memory, a bare environment.

oneDNN and PyTorch limit themselves to an instruction set by environment variables. This shows that everything works and
what is chosen, not how fast such a CPU is.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, needs, unshare
from tests.warm import IMPORTED

CPUS = {
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "sse41": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
}
GIB = 2**30
LIBRARIES = [name for name in IMPORTED if not name.startswith("deepspeed")]  # stage 0 needs none of it
STEPS = ("optim.steps=2", "optim.warmup_steps=1", "batch_size=8", "evaluate_sequences=8")


SERIES = f"""
import json, os, runpy, sys
import {", ".join(LIBRARIES)}
for script, *arguments in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        sys.path[0], sys.argv = os.path.dirname(script), [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        sys.exit(code)
"""
"""Runs scripts one after another, each in a process of its own, which share the import of libraries."""


def bare(variables: dict[str, str], memory: int | None = None) -> Callable[..., str]:
    """Runs scripts (each with its arguments) on one core with only these environment variables: no HOME, no locale, no
    compiler on the path.
    """

    def limit() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    def run(*scripts: tuple[str | Path, ...]) -> str:
        series = json.dumps([[str(REPOSITORY / script), *map(str, arguments)] for script, *arguments in scripts])
        done = subprocess.run(
            [sys.executable, "-c", SERIES, series],
            env={"PATH": "/nonexistent", "LANG": "C", **variables},
            preexec_fn=limit,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(
    ("cpu", "reason"),
    [
        ("avx2", "this CPU (avx2) multiplies fp32 faster than bf16"),
        pytest.param("sse41", "DeepSpeed is not installed", marks=pytest.mark.long),
    ],
)
def test_an_older_cpu_with_one_core_and_4_gb_trains_evaluates_exports_and_fine_tunes_in_fp32(
    cpu: str, reason: str, shards_folder: Path, tmp_path: Path, laptop: dict[str, str]
) -> None:
    lacks = {"PYTHONPATH": laptop["PYTHONPATH"]} if "not installed" in reason else {}
    (tmp_path / "CoLA").mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / "CoLA" / name).write_text("made\t1\t\tA sentence.\nmade\t0\t*\tSentence a.\n" * 8)
    given = ("--preset", "tiny", "--data", shards_folder, "--output", tmp_path / "run", "--set", *STEPS)
    task = ("--task", "CoLA", "--data_dir", tmp_path, "--seeds", "1", "--epochs", "1", "--keep", "none")
    said = bare(CPUS[cpu] | lacks, memory=4 * GIB)(
        ("pretrain/run.py", *given),
        ("pretrain/evaluate.py", tmp_path / "run", "--sequences", "8"),
        ("pretrain/export.py", tmp_path / "run", tmp_path / "exported"),
        ("finetune/run_glue.py", "--model", tmp_path / "exported", *task, "--output", tmp_path / "scores"),
        ("finetune/report.py", tmp_path / "scores"),
    )
    assert f"precision   fp32 (zero0_fp32): {reason}\n" in said
    assert " on this core at the speed measured now\n" in said and "done: 2 steps" in said
    assert f"CPU with {cpu}" in (tmp_path / "run" / "run.json").read_text()
    assert "MLM loss" in said
    assert f"precision fp32 (zero0_fp32): {reason}\n" in said
    assert "CoLA seed 1: epoch 1, loss" in said


@pytest.mark.long
def test_a_file_in_a_slow_precision_still_runs_after_one_warning(shards_folder: Path, tmp_path: Path) -> None:
    given = ("--preset", "tiny", "--data", shards_folder, "--deepspeed_config", "zero1_bf16", "--set", *STEPS)
    said = bare(CPUS["avx2"])(("pretrain/run.py", *given, "--output", tmp_path / "run"))
    warnings = [line for line in said.splitlines() if "is slow: it multiplies" in line]
    assert len(warnings) == 1 and "times as fast in fp32; add --deepspeed_config ds_configs/zero1_fp32" in warnings[0]
    assert "done: 2 steps" in said


@pytest.mark.long
def test_data_is_built_without_dev_shm(tmp_path: Path) -> None:
    """In a mount namespace of its own, which only root may make, with a /dev/shm that cannot be written to."""
    needs("mount", namespaces=("mount",))
    program = (
        f"mount -t tmpfs -o ro none /dev/shm && exec {sys.executable} electra_sampler/quickstart/corpus.py"
        f" --output {tmp_path}/raw"
    )
    command = [*unshare("mount"), "sh", "-c", f"{program} --task {tmp_path}/task"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "no semaphores (/dev/shm)" in done.stdout and (tmp_path / "raw" / "numpy.txt").stat().st_size > 10**5


def run(command: str, folder: Path, laptop: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs `python SCRIPT ...` as on such a machine."""
    script, *arguments = command.split()
    typed = [sys.executable, str(REPOSITORY / script), *arguments]
    return subprocess.run(typed, cwd=folder, env=laptop, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("package", ["deepspeed", "mpi4py", "megatron.core"])
def test_such_a_machine_lacks_the_packages(package: str, laptop: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {package}"], env=laptop, capture_output=True, text=True)
    assert f"No module named '{package.partition('.')[0]}'" in done.stderr


def test_shards_are_built_and_verified_without_mpi_and_megatrons_reader(
    shards_folder: Path, tmp_path: Path, laptop: dict[str, str]
) -> None:
    source = f"--input {shards_folder.parent}/raw --vocab {shards_folder.parent}/vocab"
    built = run(f"data_prep/build_shards.py {source} --output shards --seq_length 32", tmp_path, laptop)
    assert built.returncode == 0, built.stderr
    done = run("data_prep/inspect_shards.py shards --verify", tmp_path, laptop)
    assert done.returncode == 0, done.stderr
    assert "megatron-core is not installed" in done.stdout and "no problem found" in done.stdout


def test_a_job_that_needs_deepspeed_says_what_to_do_in_one_line(
    shards_folder: Path, tmp_path: Path, laptop: dict[str, str]
) -> None:
    options = f"--preset tiny --data {shards_folder} --output bf16 --deepspeed_config zero1_bf16"
    done = run(f"pretrain/run.py {options}", tmp_path, laptop)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "No module named 'deepspeed'" in line
    assert line.endswith("--deepspeed_config ds_configs/zero0_fp32.json, which does not need it")
