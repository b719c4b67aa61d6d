"""Worker of test_two_phases.py: continues a run with its optimizer for a step at every ZeRO stage, in one launch.

    deepspeed --num_gpus 2 tests/reliability/phases_worker.py SHARDS RUN FOLDER

Leaves FOLDER/STAGE/start.pt, the state before the step, and the run's checkpoint after it.
"""

import sys
from dataclasses import asdict
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from pretrain.job.processes import leave, start_processes
from pretrain.job.watchdog import Watchdog
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import make_plan
from pretrain.training.start import build_training, measured_machine

STAGES = (0, 1, 2, 3)


def main(shards: str, run: str, folder: str) -> None:
    world = start_processes()
    for stage in STAGES:
        schedule = (
            "optim.steps=1",
            "optim.warmup_steps=0",
            "batch_size=8",
            f"deepspeed.zero_optimization.stage={stage}",
        )
        values = {"preset": "tiny", "data": (shards,), "output": Path(folder) / str(stage), "init_from": (run,)}
        plan = make_plan(
            RunOptions.from_values(
                values | {"keep_optimizer": True, "deepspeed_config": "ds_configs/zero1_fp32.json", "set": schedule}
            )
        )
        with Watchdog(world, 200, plan.folder) as watchdog:
            training = build_training(plan, measured_machine(plan, world), world, watchdog)
            state = training.engine.full_state()
            if world.is_first:
                torch.save(asdict(state), plan.folder / "start.pt")
            assert training.train() == 0
    leave(0)


if __name__ == "__main__":
    main(*[argument for argument in sys.argv[1:] if not argument.startswith("--local_rank")])
