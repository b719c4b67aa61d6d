"""Checks that a code change alters no result: trains short runs in two checkouts and compares them bit by bit.

    python bench/bitwise.py --before CHECKOUT --data SHARDS [--cells hp_loss/bf16/1 ...]

This checkout holds the change, `CHECKOUT` the commit before it. Each cell names an objective, a precision and a ZeRO
stage: 20 steps of the tiny preset, with dropout, on two ranks started by DeepSpeed's launcher. The table compares
checksums of the losses, weights and Adam moments; the exit code is 1 unless all are equal.
"""

import hashlib
import json
import socket
import sys
import tempfile
from pathlib import Path

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.checkouts import REPOSITORY, run_in
from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.config import StrictConfig
from electra_sampler.foundation.markdown_table import markdown_table

SETTINGS = (
    "model.dropout=0.1",
    "model.attention_dropout=0.1",
    "optim.steps=20",
    "optim.warmup_steps=5",
    "batch_size=8",
    "log_every=5",
    "evaluate_every=20",
    "evaluate_sequences=8",
    "checkpoint_every=20",
)
CELLS = tuple(
    f"{objective}/{precision}/{stage}"
    for objective in ("hp_loss", "hp_dist", "electra", "mlm")
    for precision, stages in (("fp32", (0, 1, 2, 3)), ("bf16", (1, 2, 3)))
    for stage in stages
)
"""Objective/precision/ZeRO stage; not bf16 at stage 0, which is refused: DeepSpeed has no fp32 master weights there."""


class BitwiseOptions(StrictConfig):
    """The command line of `bitwise.py`."""

    before: Path
    """checkout of the commit to compare with"""
    data: Path
    """shards that both checkouts can read"""
    cells: tuple[str, ...] = CELLS
    """objective/precision/stage"""


def main(options: BitwiseOptions) -> int:
    rows, equal = [], True
    with tempfile.TemporaryDirectory() as folder:
        for cell in options.cells:
            sums = [
                train(
                    checkout.resolve(), cell, options.data.resolve(), Path(folder) / f"{cell.replace('/', '-')}-{name}"
                )
                for name, checkout in (("before", options.before), ("after", REPOSITORY))
            ]
            equal &= sums[0] == sums[1]
            rows.append([cell, sums[0][:16], sums[1][:16], "equal" if sums[0] == sums[1] else "**not equal**"])
            print(*rows[-1], flush=True)
    print("\n".join(markdown_table(["run", "before", "after", ""], rows)))
    return 0 if equal else 1


def train(checkout: Path, cell: str, data: Path, output: Path) -> str:
    """Trains one run in a checkout; returns the SHA-256 of its losses and of its last checkpoint's tensors."""
    objective, precision, stage = cell.split("/")
    output.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("deepspeed"), "--num_gpus", "2", "--master_port", port]
    command += [
        "pretrain/run.py",
        "--preset",
        "tiny",
        "--data",
        data,
        "--output",
        output / "run",
        "--objective",
        objective,
    ]
    command += ["--deepspeed_config", f"ds_configs/zero1_{precision}.json"]
    command += ["--set", f"deepspeed.zero_optimization.stage={stage}", *SETTINGS]
    run_in(checkout, command, cell)
    checkpoint = output / "run/checkpoints/step-00000020"
    digest = hashlib.sha256()
    digest.update(json.dumps(json.loads((checkpoint / "state.json").read_text())["extra"]["recent_losses"]).encode())
    for path in sorted(checkpoint.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(run_command(main, BitwiseOptions, __doc__))
