"""Walks the whole road on a small corpus, offline: from text to a fine-tuned score.

Run: python quickstart/run.py [--short]

Runs the commands that a user would type, printing each. Starts afresh every time. Ends with one table, and
with exit code 1 when what was learned falls short of it.
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from data_prep.command_line import run_command
from data_prep.config import StrictConfig

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path("data/quickstart")
RAW, VOCAB, SHARDS = DATA / "raw", DATA / "vocab", DATA / "shards"
TASK_TEXT, TASKS = DATA / "task.txt", DATA / "glue"
RUNS = Path("runs/quickstart")
RUN, EXPORTED, SCORES = RUNS / "tiny", RUNS / "exported", RUNS / "glue"

# Ours, chosen with the tiny preset: small enough to learn in minutes (docs/reproduction.md).
VOCAB_SIZE, SEQ_LENGTH, HELD_OUT = 2048, 64, 0.03
SHORT_STEPS = 1000


class QuickstartOptions(StrictConfig):
    """Options of the quickstart."""

    short: bool = False
    """pre-train for half of the steps, as continuous integration does"""


class Stage(NamedTuple):
    """One command and its name in the table of times."""

    name: str
    command: str


def main(options: QuickstartOptions) -> int:
    """Runs every stage and prints the table; 1 when a stage fails or a demand is not met."""
    os.chdir(REPOSITORY)
    for folder in (DATA, RUNS):
        shutil.rmtree(folder, ignore_errors=True)
    link_default_folders()
    seconds = {}
    for stage in stages(options.short):
        print(f"\n$ {stage.command}", flush=True)
        started = time.monotonic()
        code = run_stage(stage)
        if code:
            print(f"quickstart: {stage.name} ended with exit code {code}", file=sys.stderr)
            return 1
        seconds[stage.name] = time.monotonic() - started
    return summarise(seconds)


def link_default_folders() -> None:
    """Lets `build_shards.py` without options find the small corpus where there is no other input."""
    for default, ours in ((Path("data/raw"), RAW), (Path("data/vocab"), VOCAB)):
        if not default.is_symlink() and not default.exists():
            default.parent.mkdir(exist_ok=True)
            default.symlink_to(ours.relative_to("data"))


def stages(short: bool) -> Iterator[Stage]:
    """The commands in order."""
    yield Stage("corpus", f"python quickstart/corpus.py --output {RAW} --set_aside {TASK_TEXT}")
    yield Stage(
        "vocabulary",
        f"python data_prep/train_vocab.py --input {RAW} --output {VOCAB} --size {VOCAB_SIZE}",
    )
    yield Stage(
        "shards",
        f"python data_prep/build_shards.py --input {RAW} --output {SHARDS} --vocab {VOCAB}"
        f" --seq_length {SEQ_LENGTH} --held_out {HELD_OUT}",
    )
    yield Stage("inspection", f"python data_prep/inspect_shards.py {SHARDS} --verify --show 2")
    if not Path("data/wikibooks").exists():
        yield Stage("default shards", "python data_prep/build_shards.py")
    steps = f" --set optim.steps={SHORT_STEPS}" if short else ""
    yield Stage(
        "pre-training",
        f"deepspeed --num_gpus {processes()} --master_port {free_port()} pretrain/run.py --preset tiny"
        f" --data {SHARDS} --output {RUN}{steps}",
    )
    yield Stage("evaluation", f"python pretrain/evaluate.py {RUN}")
    yield Stage("export", f"python pretrain/export.py {RUN} {EXPORTED}")
    yield Stage("task", f"python quickstart/acceptability.py --input {TASK_TEXT} --output {TASKS}/CoLA")
    glue = f"python finetune/run_glue.py --model {EXPORTED} --task CoLA --data_dir {TASKS} --seeds 1 2 3"
    yield Stage("fine-tuning", f"{glue} --output {SCORES}")
    yield Stage("untrained encoder", f"{glue} --random_weights --output {SCORES}")
    yield Stage("report", f"python finetune/report.py {SCORES}")


def processes() -> int:
    """Processes of the pre-training run: one a GPU, or two on the CPU."""
    import torch

    return torch.cuda.device_count() or 2


def free_port() -> int:
    """A port for the ranks to meet at: DeepSpeed's own may be taken by another run on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def run_stage(stage: Stage) -> int:
    """Runs a command with this Python's `python` and `deepspeed`; returns its exit code."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(shlex.split(stage.command), env=os.environ | {"PATH": path}).returncode


def summarise(seconds: dict[str, float]) -> int:
    """Prints results, times and where to look; 1 when a demand is not met."""
    from quickstart.summary import read_results, show, table

    rows = table(read_results(RUN, SCORES))
    print(f"\n{show(rows)}\n")
    print("seconds  " + ", ".join(f"{name} {spent:.0f}" for name, spent in seconds.items()))
    print(f"in all   {sum(seconds.values()) / 60:.1f} minutes")
    print(f"figures  {RUN}/evaluation/*.png, {SCORES}/report.png")
    print(f"scores   {SCORES}/report.md")
    print(f"curves   tensorboard --logdir {RUN}/tensorboard")
    return int(any(row.passed is False for row in rows))


if __name__ == "__main__":
    sys.exit(run_command(main, QuickstartOptions, __doc__))
