"""Runs the whole pipeline on a small corpus, offline: from text to a fine-tuned score.

Run: python electra_sampler/quickstart/run.py [--short]

Runs the commands that a user would type, printing each, in the current folder. Empties data/quickstart and
runs/quickstart there first, and touches no other folder. Ends with a table of results and an HTML page; the exit
code is 1 if a result misses its requirement in the table.
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from electra_sampler.foundation.command_line import run_script
from electra_sampler.foundation.config import StrictConfig
from electra_sampler.foundation.machine import cores
from electra_sampler.foundation.progress import about
from electra_sampler.quickstart.corpus import DATA, RAW, TASKS

VOCAB, SHARDS = DATA / "vocab", DATA / "shards"
RUNS = Path("runs/quickstart")
RUN, EXPORTED, SCORES = RUNS / "tiny", RUNS / "exported", RUNS / "glue"

# Ours, chosen with the tiny preset: small enough to learn in minutes (docs/evidence/results.md).
VOCAB_SIZE, SEQ_LENGTH, HELD_OUT = 2048, 64, 0.03
FEWEST_STEPS, MOST_STEPS, TRAINING_SECONDS = 800, 2000, 240
"""Pre-training takes as many steps as fit into these seconds, within these bounds."""
MEAN_LENGTH = 58
"""Tokens per sequence of the corpus; the rest is padding."""
STEP_SECONDS = 0.25
SECONDS = {
    "corpus": 31,
    "vocabulary": 4,
    "shards": 5,
    "inspection": 13,
    "start of pre-training": 22,
    "evaluation": 10,
    "export": 3,
    "fine-tuning": 48,
    "report": 1,
}
"""Seconds of a step and of all else on two cores of an AMD EPYC of 2021 (AVX2): means of a new environment's first run,
which compiles what it imports, and a later one. Fine-tuning took 77 one encoder after the other; both at once take .63
of that on an Intel Xeon of 2023 kept to AVX2."""


class QuickstartOptions(StrictConfig):
    """The command line of `run.py`."""

    short: bool = False
    """pre-train for 800 steps on any machine, without measuring it, as continuous integration does"""


def main(options: QuickstartOptions) -> int:
    """Runs every stage and prints results, times and where to look; returns 1 if a stage or requirement fails."""
    start_afresh()
    steps = FEWEST_STEPS
    if not options.short:
        from pretrain.planning.estimates import Sizes, forecast_here
        from pretrain.presets import TINY

        where, step_seconds = forecast_here(Sizes(TINY, VOCAB_SIZE, SEQ_LENGTH), MEAN_LENGTH, processes())
        steps = fitting(step_seconds)
        print(forecast(where, step_seconds, steps), flush=True)
    seconds = {}
    for name, command in stages(steps).items():
        with socket.create_server(("127.0.0.1", 0)) as server:  # another run may be using DeepSpeed's default port
            command = command.format(port=server.getsockname()[1])
        print(f"\n$ {command}", flush=True)
        started = time.monotonic()
        if code := run_stage(command):
            print(f"quickstart: {name} failed with exit code {code}", file=sys.stderr)
            return 1
        seconds[name] = time.monotonic() - started
    return summarize(seconds)


def start_afresh() -> None:
    """Empties the quickstart's own folders."""
    for folder in (DATA, RUNS):
        shutil.rmtree(folder, ignore_errors=True)


def fitting(step_seconds: float) -> int:
    """Returns how many steps, in hundreds, fit into `TRAINING_SECONDS`."""
    return min(MOST_STEPS, max(FEWEST_STEPS, int(TRAINING_SECONDS / step_seconds) // 100 * 100))


def forecast(where: str, step_seconds: float, steps: int) -> str:
    """Returns a line on how long this machine will take: the other stages, which multiply less, differ as the root."""
    others = {name: seconds * (step_seconds / STEP_SECONDS) ** 0.5 for name, seconds in SECONDS.items()}
    return (
        f"{about(steps * step_seconds + sum(others.values()))} on {where}: {about(steps * step_seconds)} for"
        f" {steps:,} steps of pre-training; seconds of the other stages: "
        + ", ".join(f"{name} {seconds:.0f}" for name, seconds in others.items())
    )


def processes() -> int:
    """Returns the number of processes that pre-train: one per GPU, else two or as many as there are cores."""
    import torch

    return torch.cuda.device_count() or min(2, cores())


def stages(steps: int) -> dict[str, str]:
    """Returns each stage's command, in order, by its name in the table of times; `{port}` stands for a free port."""
    together = f"deepspeed --quiet --num_gpus {processes()} --master_port {{port}} --module"
    launcher = together if processes() > 1 and find_spec("deepspeed") else "python -m"
    glue = (
        f"env OMP_NUM_THREADS={max(1, cores() // 2)} python -m finetune.run_glue --model {EXPORTED} --task CoLA"
        f" --data_dir {TASKS} --seeds 1 2 3 --output {SCORES}"
    )
    return {
        "corpus": f"python -m electra_sampler.quickstart.corpus --output {RAW} --task {TASKS}/CoLA",
        "vocabulary": f"python -m data_prep.train_vocab --input {RAW} --output {VOCAB} --size {VOCAB_SIZE}",
        "shards": f"python -m data_prep.build_shards --input {RAW} --output {SHARDS} --vocab {VOCAB}"
        f" --seq_length {SEQ_LENGTH} --held_out {HELD_OUT}",
        "inspection": f"python -m data_prep.inspect_shards {SHARDS} --verify --show 2",
        "pre-training": f"{launcher} pretrain.run --preset tiny --data {SHARDS} --output {RUN}"
        f" --set optim.steps={steps}",
        "evaluation": f"python -m pretrain.evaluate {RUN}",
        "export": f"python -m pretrain.export {RUN} {EXPORTED}",
        "fine-tuning": f"{glue} & {glue} --random_weights",
        "report": f"python -m finetune.report {SCORES}",
    }


def run_stage(stage: str) -> int:
    """Runs a command, or several joined by ` & ` at once, with the `python` and `deepspeed` of this environment.

    The output of all but the first waits for its turn. Returns the first exit code that is not 0.
    """
    import torch

    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    found = {"DS_ACCELERATOR": "cuda" if torch.cuda.is_available() else "cpu"}  # else DeepSpeed warns
    running = [
        subprocess.Popen(
            shlex.split(command), env=found | os.environ | {"PATH": path}, stdout=subprocess.PIPE if place else None
        )
        for place, command in enumerate(stage.split(" & "))
    ]
    for process in running:
        print((process.communicate()[0] or b"").decode(), end="", flush=True)
    return next((process.returncode for process in running if process.returncode), 0)


def summarize(seconds: dict[str, float]) -> int:
    """Prints results, times and where to look; returns 1 if a result is not as required."""
    from electra_sampler.quickstart.summary import read_results, show, table

    rows = table(**read_results(RUN, SCORES))
    print(
        f"\n{show(rows)}\n",
        "seconds  " + ", ".join(f"{name} {spent:.0f}" for name, spent in seconds.items()),
        f"in all   {sum(seconds.values()) / 60:.1f} minutes",
        f"figures  {RUN}/evaluation/*.png",
        f"scores   {SCORES}/report.md",
        f"curves   tensorboard --logdir {RUN}",
        sep="\n",
    )
    code = run_stage(f"python -m pretrain.page {RUN}")  # its last line is the page's path
    print(f"play     python -m finetune.show {RUN}")
    return code or int(any(row.passed is False for row in rows))


if __name__ == "__main__":
    run_script(main)
