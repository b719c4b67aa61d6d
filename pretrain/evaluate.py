"""Evaluate pre-training runs on held-out text: detection under p_S and p_G, and what the sampling head knows.

python pretrain/evaluate.py runs/base
python pretrain/evaluate.py runs/base --steps all
python pretrain/evaluate.py runs/electra runs/base --output runs/compared
"""

import sys
from pathlib import Path
from typing import Annotated

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from foundation.command_line import POSITIONAL, run_command
from foundation.config import MOST, StrictConfig


class EvaluateOptions(StrictConfig):
    """The command line of an evaluation."""

    runs: Annotated[tuple[Path, ...], POSITIONAL, Field(min_length=1)]
    """run folders; several are crossed, the first the baseline"""
    steps: tuple[str, ...] = Field(default=("newest",), min_length=1)
    """checkpoints: newest, all, or their steps"""
    data: Path | None = None
    """held-out shards (those beside the runs' data)"""
    output: Path | None = None
    """where the crossing goes (FIRST RUN/evaluation)"""
    sequences: int = Field(default=4096, gt=0, le=MOST)
    """sequences to read at most"""
    batch_size: int = Field(default=64, gt=0, le=4096)
    """sequences at once"""


def main(options: EvaluateOptions) -> None:
    from pretrain.analysis.evaluation import evaluate

    evaluate(**dict(options))


if __name__ == "__main__":
    sys.exit(run_command(main, EvaluateOptions, __doc__))
