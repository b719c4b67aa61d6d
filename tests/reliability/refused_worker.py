"""Worker of test_two_commands.py: a rank that has found the run folder free and joins the others.

deepspeed tests/reliability/refused_worker.py OPTIONS        options of pretrain/run.py
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from foundation.command_line import run_command
from pretrain.job.processes import start_processes
from pretrain.training.options import RunOptions
from pretrain.training.plan import make_plan
from pretrain.training.train import take_folder

if __name__ == "__main__":
    sys.exit(run_command(lambda options: take_folder(make_plan(options), start_processes()) and 0, RunOptions, __doc__))
