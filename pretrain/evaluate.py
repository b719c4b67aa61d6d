"""Evaluate pre-training runs on held-out text: detection under p_S and p_G, and accuracy of the estimated loss.

python pretrain/evaluate.py runs/base
python pretrain/evaluate.py runs/base --steps all
python pretrain/evaluate.py runs/electra runs/base --output runs/compared
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from electra_sampler.foundation.command_line import POSITIONAL, run_script
from electra_sampler.foundation.config import MOST, StrictConfig
from pretrain.method.registry import GivenObjective


class EvaluateOptions(StrictConfig):
    """The command line of `evaluate.py`."""

    runs: Annotated[tuple[Path, ...], POSITIONAL, Field(min_length=1)]
    """run folders; several are compared pairwise, with the first as baseline"""
    objective: tuple[GivenObjective, ...] = ()
    """sampler of the runs, if not built in: FILE.py:CLASS or package.module:CLASS"""
    steps: tuple[str, ...] = Field(default=("newest",), min_length=1)
    """checkpoints: newest, all, or step numbers"""
    data: Path | None = None
    """held-out shards (those beside the runs' data)"""
    output: Path | None = None
    """folder for the comparison of the runs (FIRST RUN/evaluation)"""
    sequences: int = Field(default=4096, gt=0, le=MOST)
    """maximum number of sequences to read"""
    oracle_sequences: int = Field(default=0, ge=0, le=MOST)
    """sequences on which to measure how far the sampler is from p_G times the true loss; 17 forward passes each"""
    batch_size: int = Field(default=64, gt=0, le=4096)
    """sequences per forward pass"""


def main(options: EvaluateOptions) -> None:
    from pretrain.analysis.evaluation import evaluate

    evaluate(**options.model_dump(exclude={"objective"}))  # its validation has loaded it


if __name__ == "__main__":
    run_script(main)
