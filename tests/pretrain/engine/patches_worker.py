"""Worker of test_deepspeed_patches.py: trains as if another version of DeepSpeed were installed.

deepspeed --num_gpus 2 tests/pretrain/engine/patches_worker.py RESULT.json
"""

import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[3])

import deepspeed

from pretrain.job.processes import leave, start_processes
from tests.pretrain.engine.engine_worker import BF16, FP32, make_runner, spoiled_step

STEPS = 5


def main(result: Path) -> None:
    world = start_processes()
    deepspeed.__version__ = "0.19.9"
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # saves half a minute of compiling C++
    figures = {}
    for name in (*FP32, *BF16):
        runner = make_runner(name, world, seed=world.rank)
        losses = runner.train(range(STEPS))
        figures[name] = {"losses": losses, "spoiled": spoiled_step(runner, runner.engine.full_state())}
    if world.is_first:
        result.write_text(json.dumps(figures))
    leave(0)


if __name__ == "__main__":
    main(Path(next(argument for argument in sys.argv[1:] if not argument.startswith("--"))))
