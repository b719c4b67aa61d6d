"""Worker of test_two_commands.py: a rank that has found the run folder free and joins the others.

deepspeed tests/reliability/refused_worker.py OPTIONS        options of pretrain/run.py
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from electra_sampler.foundation.command_line import run_command
from pretrain.job.processes import start_processes
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import make_plan
from pretrain.runs.folder import lock_run


def main(options: RunOptions) -> None:
    plan = make_plan(options)
    start_processes().on_first(lambda: lock_run(plan.folder, plan.description))


if __name__ == "__main__":
    sys.exit(run_command(main, RunOptions, __doc__))
