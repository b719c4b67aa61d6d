"""The stages of the rehearsal: each runs one command as a user types it and returns measurements."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from bench.resources import Finished, Line, disk_of, measure, start
from bench.two_hosts import ADDRESSES, TwoHosts
from data_prep.manifest import RECORDS_NAME

PYTHON = Path(sys.executable)
HOSTFILE = "hostfiles/16v100"
BUILD = ("build_planned", "build_killed", "build", "build_again", "verified")
SETTINGS = ("optim.steps=2", "optim.warmup_steps=1", "checkpoint_every=1", "evaluate_sequences=64")
"""Two steps with a checkpoint after each; few sequences, because evaluating 512 takes longer than both steps."""
LESS_MEMORY = (
    "deepspeed.activation_checkpointing={}",
    "deepspeed.train_micro_batch_size_per_gpu=1",
    "deepspeed.zero_optimization.reduce_bucket_size=10000000",
    "deepspeed.zero_optimization.allgather_bucket_size=10000000",
)
"""Small buckets: with the shipped ones of 50 million elements, 16 ranks need 1.3 GB more."""
MARKED = "ELECTRA_SAMPLER_REHEARSAL"
"""Environment variable set for every process that the rehearsal starts."""
TRAIN_ROWS, DEV_ROWS = 320, 64
"""Examples of RTE: ten updates of 32 examples."""


class Stages:
    """The commands and the hosts they run on; a context manager that shuts the hosts down."""

    def __init__(self, work: Path, preset: str, batch_size: int) -> None:
        self.work, self.preset = work, preset
        self.settings = (*SETTINGS, f"batch_size={batch_size}")
        self._shared_before = shared_memory()
        self._hosts: TwoHosts | None = None
        os.environ[MARKED] = str(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._hosts:
            self._hosts.close()

    @property
    def hosts(self) -> TwoHosts:
        """node1 and node2, the names in the shipped hostfile; started on first use."""
        if self._hosts is None:
            folder = self.work / "hosts"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            self._hosts = TwoHosts(folder)
        return self._hosts

    # Data

    def build_planned(self) -> dict[str, Any]:
        return self._local("data_prep/build_shards.py", "--dry_run")

    def build_killed(self) -> dict[str, Any]:
        """Builds shards and kills the command halfway; its workers notice and end."""

        def kill(process: "subprocess.Popen[str]") -> None:
            if self._finished() >= 4:  # of at least eight
                process.kill()

        return self._local("data_prep/build_shards.py", poll=kill, code=-signal.SIGKILL)

    def build(self) -> dict[str, Any]:
        """Reruns the build, which resumes."""
        before = self._finished()
        return self._local("data_prep/build_shards.py") | {"shards_before": before} | self._shards()

    def _finished(self) -> int:
        return len(list((self.work / "data/wikibooks" / RECORDS_NAME).glob("shard-*.json")))

    def build_again(self) -> dict[str, Any]:
        """Reruns the build on finished shards: it checks all text and all shards."""
        return self._local("data_prep/build_shards.py")

    def verified(self) -> dict[str, Any]:
        return self._local("data_prep/inspect_shards.py", "data/wikibooks", "--verify")

    def _shards(self) -> dict[str, Any]:
        folder = self.work / "data/wikibooks"
        manifest = json.loads((folder / "manifest.json").read_text())
        totals = {key: value for key, value in manifest.items() if isinstance(value, (int, float))}
        return {"shards_bytes": disk_of(folder), "shards": len(list(folder.glob("*.bin"))) // 2, "manifest": totals}

    # Pre-training

    @property
    def literal(self) -> list[str]:
        """The README's command."""
        preset = [] if self.preset == "base" else ["--preset", self.preset]
        return ["deepspeed", "--hostfile", HOSTFILE, "pretrain/run.py", *preset]

    @property
    def added(self) -> list[str]:
        """Options added because this machine has no GPU and the run should fit into an evening."""
        return ["--deepspeed_config", "ds_configs/zero1_bf16.json", "--set", *self.settings, *LESS_MEMORY]

    def refused(self) -> dict[str, Any]:
        """Runs the README's command unchanged; it is refused because the hosts have no GPU."""
        return self._on_hosts(self.literal, code=2)

    def planned(self) -> dict[str, Any]:
        """Runs the dry run; returns its predictions for the run."""
        options = [part for part in self.literal[3:] if part != "pretrain/run.py"]
        command = [PYTHON, "pretrain/run.py", *options, *self.added, "--dry_run", "--hostfile", HOSTFILE]
        return self._on_hosts(command, code=2)  # the dry run reports that each host has fewer cores than slots

    def whole(self) -> dict[str, Any]:
        """Trains without interruption."""
        self._remove("runs/whole")
        return self._on_hosts([*self.literal, "--output", "runs/whole", *self.added]) | self._saved("runs/whole")

    def killed(self) -> dict[str, Any]:
        """Trains, and kills one rank once the first step is saved."""
        self._remove(f"runs/{self.preset}")

        def kill(process: "subprocess.Popen[str]", line: Line) -> None:
            if "saved " in line.text and "step-00000001" in line.text:
                ranks = self.hosts.processes("node2", "pretrain/run.py --local_rank=7")
                os.kill(max(ranks), signal.SIGKILL)

        return self._on_hosts([*self.literal, *self.added], act=kill, code=None)

    def resumed(self) -> dict[str, Any]:
        """Reruns the command, which resumes."""
        return self._on_hosts([*self.literal, *self.added]) | self._saved(f"runs/{self.preset}")

    def _saved(self, run: str) -> dict[str, Any]:
        """The last checkpoint's size, checksums (weights, moments) and state, which has the latest losses."""
        folder = max((self.work / run / "checkpoints").glob("step-*[0-9]"))
        return {
            "checkpoint": folder.name,
            "checkpoint_bytes": disk_of(folder),
            "sums": json.loads((folder / "complete.json").read_text()),
            "state": json.loads((folder / "state.json").read_text()),
            "starts": [json.loads(line) for line in (self.work / run / "starts.jsonl").read_text().splitlines()],
        }

    # The model

    def evaluated(self) -> dict[str, Any]:
        return self._local("pretrain/evaluate.py", f"runs/{self.preset}", "--sequences", "64", "--batch_size", "8")

    def exported(self) -> dict[str, Any]:
        self._remove("exported")
        return self._local("pretrain/export.py", f"runs/{self.preset}", "exported")

    def loaded(self) -> dict[str, Any]:
        """Loads the export with Hugging Face, in a process that does not import this project."""
        script = (
            "from transformers import AutoModelForPreTraining, AutoTokenizer; code = {'trust_remote_code': True};"
            " tokenizer = AutoTokenizer.from_pretrained('.', **code);"
            " model = AutoModelForPreTraining.from_pretrained('.', **code);"
            " logits = model(**tokenizer('the quick brown fox', return_tensors='pt')).logits;"
            " print(type(model).__name__, tuple(logits.shape))"
        )
        return self._run(lambda: start([PYTHON, "-c", script], self.work / "exported"), code=0)

    def fine_tuned(self, rte: Path) -> dict[str, Any]:
        """Fine-tunes on RTE: ten updates on two ranks."""
        self._remove("runs/glue")
        folder = self.work / "data/glue/RTE"
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("train", TRAIN_ROWS), ("dev", DEV_ROWS)):
            lines = (rte / f"{name}.tsv").read_text().splitlines(keepends=True)
            (folder / f"{name}.tsv").write_text("".join(lines[: rows + 1]))
        options = ("--model", "exported", "--task", "RTE", "--data_dir", "data/glue", "--seeds", "1", "--epochs", "1")
        command = [PYTHON.with_name("deepspeed"), "--num_gpus", "2", "finetune/run_glue.py", *options]
        return self._run(lambda: start([*command, "--output", "runs/glue"], self.work, OMP_NUM_THREADS="1"), code=0)

    def left(self) -> dict[str, Any]:
        """Processes and files in shared memory that are left at the end."""
        if self._hosts:
            self._hosts.close()
            self._hosts = None
        mine = [process for process in psutil.process_iter() if _is_marked(process, self.work)]
        return {
            "seconds": 0.0,
            "processes": [" ".join(process.cmdline()) for process in mine if process.pid != os.getpid()],
            "shared": sorted(shared_memory() - self._shared_before),
        }

    # Running a command

    def _remove(self, folder: str) -> None:
        """Removes what an unfinished attempt at the stage left."""
        shutil.rmtree(self.work / folder, ignore_errors=True)

    def _local(self, script: str, *arguments: str, code: int = 0, **watched: Any) -> dict[str, Any]:
        return self._run(lambda: start([PYTHON, script, *arguments], self.work), code, **watched)

    def _on_hosts(self, command: Sequence[object], code: int | None = 0, **watched: Any) -> dict[str, Any]:
        hosts, mark, before = self.hosts, {MARKED: str(self.work)}, self._sent()

        def sent() -> int:
            return self._sent() - before

        return self._run(lambda: hosts.start(command, self.work, **mark), code, sent=sent, **watched)

    def _run(self, started: Any, code: int | None, **watched: Any) -> dict[str, Any]:
        """Runs and measures a command that must exit with `code`, or with any code but 0 if `code` is None.

        Raises:
            RuntimeError: the exit code is another.
        """
        finished = measure(started, self.work, **watched)
        if finished.code != code and (code is not None or finished.code == 0):
            raise RuntimeError(f"exit code {finished.code}, expected {code}:\n{finished.output}")
        return record_of(finished)

    def _sent(self) -> int:
        """Bytes that both hosts have sent, to each other and within themselves."""
        return sum(_sent_bytes(self.hosts.hosts[name].pid) for name in ADDRESSES)


def record_of(finished: Finished) -> dict[str, Any]:
    """Returns a command's exit code, output and resources, for the stage's file."""
    usage = finished.usage._asdict()
    for name in ("largest", "descriptors", "maps"):
        usage[name] = usage[name]._asdict()
    return {**usage, "code": finished.code, "lines": [line._asdict() for line in finished.lines]}


def _sent_bytes(process: int) -> int:
    """Bytes sent over all interfaces of a process's network, counted by the kernel."""
    lines = Path(f"/proc/{process}/net/dev").read_text().splitlines()[2:]
    return sum(int(re.split(r":\s*|\s+", line.strip())[9]) for line in lines)


def shared_memory() -> set[str]:
    """Names of the files in shared memory."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def _is_marked(process: psutil.Process, work: Path) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(MARKED) == str(work)
    return False
