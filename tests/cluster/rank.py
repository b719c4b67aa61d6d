"""A rank that only waits, to test launchers: it records the signals it receives and exits with 75 once asked.

    deepspeed tests/cluster/rank.py --folder FOLDER       or under srun

FOLDER/rank-N holds a line `started on HOST`, then the name of each signal. The first signal asks every rank to leave,
through the file FOLDER/stop.
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
    time.sleep(1.3 if rank == "0" else 1)  # rank 0 leaves last, because launchers end ranks in order
    return 75


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[-1]), os.environ.get("RANK") or os.environ["SLURM_PROCID"]))
