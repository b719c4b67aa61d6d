"""Runs a program in a checkout of this project, for comparisons of two commits."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def run_in(checkout: Path, command: Sequence[object], name: str) -> str:
    """Runs a command on one thread, with the checkout's own code rather than the installed one; returns its output.

    Raises:
        RuntimeError: it failed; the message begins with `name`.
    """
    done = subprocess.run(
        list(map(str, command)),
        cwd=checkout,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed in {checkout} with exit code {done.returncode}:\n{done.stdout}")
    return done.stdout
