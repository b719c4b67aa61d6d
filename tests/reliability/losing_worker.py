"""Worker of test_two_commands.py: a run that loses its folder's lock after it has begun; options of pretrain/run.py."""

import sys
import threading
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from electra_sampler.foundation.command_line import parse_options, run_command
from pretrain.planning.options import RunOptions
from pretrain.run import main
from tests.pretrain.whole_runs import wait_for_step


def lose(folder: Path) -> None:
    wait_for_step(folder, 1)
    (folder / "lock").read_bytes()


if __name__ == "__main__":
    threading.Thread(target=lose, args=(parse_options(RunOptions, None).output,), daemon=True).start()
    sys.exit(run_command(main, RunOptions, __doc__))
