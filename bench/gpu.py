"""Every measurement that needs a GPU, in stages that resume where the last call ended.

    python bench/gpu.py --output bench/results/h100 --data SHARDS [--stages a b] [--minutes 9] [--device cpu]

Stages, the most informative first: a) checks, b) steps against Hugging Face and the machine's limit, c) ablation, d)
profile, e) training curves, f) a block of the sampler study. Stages a to e take at most 32 minutes, f as long
as allowed. Each part of a stage runs in its own process. A part that fails or hangs is recorded and ended, and the
others still run. OUTPUT has one JSON file per stage, written as results come in. A finished part is never repeated; an
unfinished one resumes in the next call, also on another machine if OUTPUT is copied there. Parts that cannot run are
listed as skipped. The exit code is 1 if anything failed. `--device cpu` rehearses on tiny shapes.
"""

import sys
from pathlib import Path

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.gpu.calls import main
from bench.gpu.parts import GpuOptions
from electra_sampler.foundation.command_line import run_command

if __name__ == "__main__":
    sys.exit(run_command(main, GpuOptions, __doc__))
