"""Check the health of a pre-training run: for each problem, what is wrong, the evidence and what to do.

python pretrain/doctor.py runs/base

Reads the run's records and a sample of its text; the run may still be training. Exit codes: 0 healthy, 3 a problem was
found, 2 not a run folder or too few steps to judge, 1 failed.
"""

from pathlib import Path
from typing import Annotated

from electra_sampler.foundation.command_line import POSITIONAL, run_script
from electra_sampler.foundation.config import StrictConfig
from pretrain.method.registry import GivenObjective

EXIT_FINDINGS = 3


class DoctorOptions(StrictConfig):
    """The command line of `doctor.py`."""

    run: Annotated[Path, POSITIONAL]
    """run folder"""
    objective: tuple[GivenObjective, ...] = ()
    """sampler of the run, if not built in: FILE.py:CLASS or package.module:CLASS"""


def main(options: DoctorOptions) -> int:
    from pretrain.analysis.health import diagnose, report

    diagnosis = diagnose(options.run)
    print(*report(diagnosis), sep="\n")
    return EXIT_FINDINGS if diagnosis.findings else 0


if __name__ == "__main__":
    run_script(main)
