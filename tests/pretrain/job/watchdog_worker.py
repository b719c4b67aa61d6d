"""Worker of test_watchdog.py: adds numbers with the other ranks until it misbehaves as told.

python tests/pretrain/job/watchdog_worker.py HOW FOLDER        with RANK and a launcher's other variables
"""

import os
import re
import signal
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[3])

import torch
import torch.distributed as dist

from pretrain.job.processes import leave, start_processes
from pretrain.job.rank_log import keep_rank_log
from pretrain.job.stopping import StopRequest
from pretrain.job.watchdog import Watchdog

HANG_TIMEOUT = 5.0
BAD_STEP = 15


def misbehave(how: str) -> None:
    print("last words")
    if how == "hangs":
        time.sleep(600)
    elif how == "is frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "holds Python's lock":
        re.match(r"(a+)+$", "a" * 60 + "b")
    elif how.startswith("is killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif how in ("raises", "raises once"):
        raise OSError("no space left on device")


def main(how: str, folder: Path) -> None:
    world = start_processes()
    keep_rank_log(folder, world.rank)
    print("started", flush=True)
    with Watchdog(world, HANG_TIMEOUT, folder) as watchdog, StopRequest(folder):
        for step in range(1000):
            watchdog.step_done(step)
            if step == BAD_STEP and how == "raises once" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
                print("came as far in peace", flush=True)
                leave(0)
            if step == BAD_STEP and world.rank == (0 if how == "is killed with the store" else 1):
                misbehave(how)
            if step == BAD_STEP and how == "raises":
                time.sleep(600)  # outside any collective, which would notice by itself
            if watchdog.launcher_gone and how != "never stops":
                leave(75)
            dist.all_reduce(torch.ones(()))
            time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
