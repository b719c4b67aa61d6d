"""A rank that only waits, to see what launchers do: notes the signals that reach it, and leaves with 75 once asked.

    deepspeed tests/cluster/rank.py --folder FOLDER       or under srun

FOLDER/rank-N holds a line `started on HOST`, then the name of each signal. The first of them asks every rank to leave,
by the file FOLDER/stop.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def main(folder: Path, rank: str) -> int:
    notes, stop = folder / f"rank-{rank}", folder / "stop"

    def note(word: str) -> None:
        with notes.open("a") as file:
            print(word, file=file)

    def heard(number: int, frame: object) -> None:
        note(signal.Signals(number).name)
        stop.touch()

    for number in SIGNALS:
        signal.signal(number, heard)
    note(f"started on {socket.gethostname()}")
    while not stop.exists():
        time.sleep(0.05)
    time.sleep(1.3 if rank == "0" else 1)  # the last to leave: who ends them one after the other begins with it
    return 75


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[-1]), os.environ.get("RANK") or os.environ["SLURM_PROCID"]))
