"""What the ranks of test_train.py do: the same 20 steps of the real model at every ZeRO stage, in one launch.

    deepspeed --num_gpus 2 tests/pretrain/zero_worker.py SHARDS RESULT.json

With replacements forced (a function of the uniforms alone) losses must agree; with free sampling the draws that
flipped are counted.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
import torch.distributed as dist
from torch import Tensor

import pretrain.sampling
from pretrain.data import BatchPlan, TrainingBatches
from pretrain.deepspeed_config import resolve
from pretrain.engine import Engine
from pretrain.models import build_model
from pretrain.optim import learning_rate, parameter_groups
from pretrain.presets import PRESETS
from pretrain.processes import World, leave, start_processes
from pretrain.replacement import Sampled, sample
from pretrain.run_folder import describe
from pretrain.shards import Shards

REPOSITORY = Path(__file__).resolve().parents[2]
STAGES = ("zero0_fp32", "zero1_fp32", "zero2_fp32", "zero3_fp32")
STEPS, BATCH_SIZE = 20, 8
OBJECTIVES = ("hp_loss", "hp_dist")


def train(stage: str, objective: str, shards: Shards, world: World) -> tuple[list[float], Tensor]:
    """The global loss of every step, and every token drawn by this rank [steps, draws]."""
    tiny = PRESETS["tiny"].run
    run = tiny.model_copy(
        update={
            "batch_size": BATCH_SIZE,
            "objective": tiny.objective.model_copy(update={"name": objective}),
            "optim": tiny.optim.model_copy(update={"steps": STEPS, "warmup_steps": 5, "lr": 5e-4}),
        }
    )
    config = json.loads((REPOSITORY / "ds_configs" / f"{stage}.json").read_text())
    config["train_micro_batch_size_per_gpu"] = 2  # two micro-batches a step and rank
    resolved = resolve(
        config,
        batch_size=BATCH_SIZE,
        world_size=world.world_size,
        device_type=world.device.type,
        optim=run.optim,
    )
    model = build_model(describe(run, shards))
    engine = Engine(model, parameter_groups(model, run.optim.weight_decay), resolved, world)
    plan = BatchPlan(BATCH_SIZE, engine.micro_batch_size, world.world_size, world.rank)
    batches, losses = TrainingBatches(shards, plan, run.seed), []
    drawn = torch.zeros(STEPS, plan.micro_batches, 2, 5, dtype=torch.int64)  # 5 masked at most of 32
    for step in range(STEPS):
        loss = torch.zeros(1, dtype=torch.float64, device=engine.device)
        rate = learning_rate(step, base=run.optim.lr, warmup_steps=5, total_steps=STEPS)
        for number, batch in enumerate(batches.step(step)):
            output = engine.forward(batch.to(engine.device))
            engine.backward(output.loss)
            engine.step(rate)
            loss += output.loss.detach() / plan.micro_batches
            drawn[step, number] = output.draw.tokens_BK.where(batch.masked_valid_BK, 0)
        losses.append(engine.sum_over_ranks(loss).item())
    return losses, drawn.flatten(1)


def compare(objective: str, shards: Shards, world: World) -> dict[str, Any]:
    """Each stage's losses, and how many draws of each step differ from stage 0's over all ranks."""
    results, plain = {}, torch.empty(0)
    for stage in STAGES:
        losses, drawn = train(stage, objective, shards, world)
        plain = drawn if stage == STAGES[0] else plain
        flips = (drawn != plain).sum(1)
        dist.all_reduce(flips)
        results[stage] = {"losses": losses, "flips": flips.tolist()}
    return results


def forced_sample(log_weights_XV: Tensor, uniform_X: Tensor) -> Sampled:
    tokens_X = (uniform_X * log_weights_XV.shape[-1]).long()
    return sample(log_weights_XV, uniform_X)._replace(tokens_X=tokens_X)


def main(folder: str, result: str) -> None:
    world, shards = start_processes(), Shards(Path(folder))
    results = {"free": {objective: compare(objective, shards, world) for objective in OBJECTIVES}}
    pretrain.sampling.sample = forced_sample
    results["forced"] = {objective: compare(objective, shards, world) for objective in OBJECTIVES}
    if world.is_first:
        Path(result).write_text(json.dumps(results))
    leave(0)


if __name__ == "__main__":
    main(*[argument for argument in sys.argv[1:] if not argument.startswith("--local_rank")])
