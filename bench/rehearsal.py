"""Dress rehearsal: runs and measures the whole pipeline at full size, from text to a fine-tuned model.

    python bench/rehearsal.py --sources DATA [--work runs/rehearsal] [--gigabytes 20]

Makes 20 GB of text, builds shards with the default options (killed once in the middle), and pre-trains the base model
by `deepspeed --hostfile hostfiles/16v100 pretrain/run.py` with 16 ranks on two simulated hosts (network namespaces).
Then evaluates, exports, loads and fine-tunes the model. Rerun the command to resume after the last finished stage. The
report is WORK/rehearsal.md: resources per stage, and predictions beside measurements. Needs root, the packages that
`bench/two_hosts.py` names, 24 GB of memory and 45 GB of disk.
"""

import importlib.metadata
import json
import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil
from pydantic import Field

from bench.enlarge import enlarge
from bench.rehearsal_report import report
from bench.rehearsal_stages import BUILD, Stages
from bench.two_hosts import missing
from foundation.command_line import run_command
from foundation.config import ConfigError, StrictConfig
from foundation.files import write_atomically
from foundation.machine import cores
from pretrain.training.starts import code_version

REPOSITORY = Path(__file__).resolve().parents[1]
GB = 10**9
DISK_PER_TEXT = 2.2
"""Measured peak disk usage of text, shards and unmerged parts, as a multiple of the text's size (see docs)."""
OTHER_DISK = 10 * GB
"""Disk for checkpoints, exports and fine-tuned models."""


class RehearsalOptions(StrictConfig):
    """The command line of the rehearsal."""

    sources: Path
    """folder with wiki/*.xz, books/, vocab/vocab.txt and glue/RTE"""
    work: Path = Path("runs/rehearsal")
    """folder for everything that is made"""
    gigabytes: float = Field(20.0, gt=0)
    """GB of text to make"""
    batch_size: int = Field(16, ge=16)
    """sequences per step; a multiple of 16"""
    preset: Literal["small", "base"] = "base"
    """model to train; use small only to try this script"""
    keep: bool = False
    """keep text and shards when done"""


def main(options: RehearsalOptions) -> None:
    if problem := missing():
        raise ConfigError(f"rehearsal: this machine cannot simulate two hosts: {problem}; install or allow them")
    work = options.work.resolve()
    prepare(work, options)
    records = Records(work / "stages")
    records.once("text", lambda: make_text(work, options))
    with Stages(work, options.preset, options.batch_size) as stages:
        for name in (*BUILD, "refused", "planned", "whole", "killed", "resumed", "evaluated", "exported", "loaded"):
            records.once(name, getattr(stages, name))
        records.once("fine_tuned", lambda: stages.fine_tuned(options.sources / "glue" / "RTE"))
        records.once("left", stages.left)
    write_atomically(work / "rehearsal.md", report(records.all(), machine(options)).encode())
    print(f"the report is in {work / 'rehearsal.md'}")
    if not options.keep:
        shutil.rmtree(work / "data")


class Records:
    """Results of the finished stages, one JSON file per stage."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def once(self, name: str, stage: Callable[[], dict[str, Any]]) -> None:
        """Runs a stage unless it has already finished."""
        path = self._folder / f"{name}.json"
        if path.exists():
            print(f"{name}: already finished", flush=True)
            return
        print(f"{name} ...", flush=True)
        found = stage()
        write_atomically(path, json.dumps(found, indent=2).encode())
        print(f"{name}: {found['seconds']:.0f} s", flush=True)

    def all(self) -> dict[str, dict[str, Any]]:
        """The results by stage."""
        return {path.stem: json.loads(path.read_text()) for path in self._folder.glob("*.json")}


def prepare(work: Path, options: RehearsalOptions) -> None:
    """Makes a folder in which the README's commands work exactly as printed.

    Raises:
        ConfigError: a source is missing, or the disk has too little free space.
    """
    for name in ("wiki", "books", "vocab/vocab.txt", "glue/RTE"):
        if not (options.sources / name).exists():
            raise ConfigError(f"sources: {options.sources} does not contain {name}; name a folder that does")
    work.mkdir(parents=True, exist_ok=True)
    for name in ("data_prep", "pretrain", "finetune", "ds_configs", "hostfiles"):
        if not (work / name).exists():
            (work / name).symlink_to(REPOSITORY / name)
    (work / "data").mkdir(exist_ok=True)
    if not (work / "data/vocab").exists():
        shutil.copytree(options.sources / "vocab", work / "data/vocab")
    if (work / "stages").exists():
        return  # a resumed rehearsal already holds part of that space
    needed, free = options.gigabytes * GB * DISK_PER_TEXT + OTHER_DISK, shutil.disk_usage(work).free
    if free < needed:
        raise ConfigError(
            f"work: {needed / GB:.0f} GB of disk space are needed, but {free / GB:.0f} GB are free at {work}; name"
            " another folder, or fewer --gigabytes"
        )


def machine(options: RehearsalOptions) -> str:
    """Returns command, machine and versions, in two sentences."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "deepspeed"))
    memory = psutil.virtual_memory().total / GB
    return (
        f"`python bench/rehearsal.py --gigabytes {options.gigabytes:g} --preset {options.preset} --batch_size"
        f" {options.batch_size}` on {cores()} cores without a GPU, {memory:.0f} GB of memory. Python"
        f" {platform.python_version()}, {versions}, commit {code_version()}."
    )


def make_text(work: Path, options: RehearsalOptions) -> dict[str, Any]:
    """Makes the corpus of altered copies of the sources."""
    started = time.monotonic()
    wiki = sorted((options.sources / "wiki").glob("enwiki-*.xz"))
    raw, size = work / "data/raw", int(options.gigabytes * GB)
    written = enlarge(wiki, options.sources / "books", raw, size, seed=0, processes=cores())
    return {"seconds": time.monotonic() - started, "bytes": written, "files": sum(1 for _ in raw.rglob("*.*"))}


if __name__ == "__main__":
    sys.exit(run_command(main, RehearsalOptions, __doc__))
