"""Worker of test_train.py: trains the same steps of the real model in every setting, in one launch.

    deepspeed --num_gpus 2 tests/pretrain/training/zero_worker.py SHARDS RESULT.json paper     or by plain python

Two ranks go through the ZeRO stages; one process goes through the ways to split the steps. Dropout is 0. With
forced replacements (which depend only on the uniforms) losses must agree; with free sampling flipped draws are counted.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path[0] = str(Path(__file__).resolve().parents[3])

import torch
from torch import Tensor

from pretrain.data.batches import BatchPlan, TrainingBatches
from pretrain.data.shards import Shards
from pretrain.engine.deepspeed_config import resolve
from pretrain.engine.engine import Engine
from pretrain.engine.optim import learning_rate, parameter_groups
from pretrain.job.processes import World, leave, start_processes
from pretrain.method.registry import load_objective, objective_class
from pretrain.model.distribution import Dense
from pretrain.presets import PRESETS
from pretrain.runs.models import build_model
from pretrain.training.metrics import MetricTotals
from tests.deepspeed_values import values_of
from tests.pretrain.runs.described import described

REPOSITORY = Path(__file__).resolve().parents[3]
STEPS, WARMUP, BATCH_SIZE, DRAWS = 6, 2, 8, 5  # at most 5 of 32 positions are masked
FORCED_STEPS = 3
"""Of which each shows an error: those with free sampling show one only until the first flipped draw."""

OTHERS = (
    *("samplers.power:HPLossPower nes", "samplers.oracle:Oracle", "samplers.floors:Uniform", "samplers.floors:Unigram"),
    "hp_loss gdes",
)
OBJECTIVES = {
    "paper": {"forced": ("hp_loss", "hp_dist", "electra", "mlm"), "free": ("hp_loss",)},
    "others": {"forced": OTHERS, "free": ("hp_dist", "electra", *OTHERS)},
}
"""Objectives as for --objective, by group and kind of sampling, each with its embedding sharing if not the default."""


class Setting(NamedTuple):
    """A configuration under which the same steps are trained."""

    deepspeed_config: str = "zero0_fp32"
    micro_batch_size: int = 2


TWO_RANKS = {stage: Setting(stage) for stage in ("zero0_fp32", "zero1_fp32", "zero2_fp32", "zero3_fp32")}
ONE_RANK = {"whole": Setting(micro_batch_size=8), "split": Setting()}


def train(setting: Setting, objective: str, shards: Shards, world: World, steps: int) -> dict[str, Any]:
    """The global loss and gradient norm of every step, every drawn token [steps, batch, draws], and the last step's
    report.
    """
    tiny = PRESETS["tiny"]
    name, _, sharing = objective.partition(" ")
    run = tiny.model_copy(
        update={
            "batch_size": BATCH_SIZE,
            "model": tiny.model.model_copy(update={"embedding_sharing": sharing or "es"}),
            "objective": objective_class(load_objective(name)).Config.from_values({}),
            "optim": tiny.optim.model_copy(update={"steps": STEPS, "warmup_steps": WARMUP, "lr": 5e-4}),
        }
    )
    values = values_of(setting.deepspeed_config) | {"train_micro_batch_size_per_gpu": setting.micro_batch_size}
    resolved = resolve(
        values,
        batch_size=BATCH_SIZE,
        world_size=world.world_size,
        device_type=world.device.type,
        clipping=run.optim.gradient_clipping,
    )
    if resolved.stage == 3:  # not a setting: by default such small parameters are not partitioned
        resolved.json["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    model = build_model(described(run, shards))
    engine = Engine(model, parameter_groups(model, run.optim.weight_decay), resolved, world)
    assert resolved.stage < 3 or not any(parameter.numel() for parameter in model.parameters()), "not partitioned"

    plan = BatchPlan(BATCH_SIZE, engine.config.micro_batch_size, world.world_size, world.rank)
    batches, losses, norms = TrainingBatches(shards, plan, run.seed), [], []
    drawn = torch.zeros(steps, BATCH_SIZE, DRAWS, dtype=torch.int64)
    for step in range(steps):
        loss, reported = torch.zeros(1, dtype=torch.float64, device=engine.device), MetricTotals(engine.device)
        rate = learning_rate(step, base=run.optim.lr, warmup_steps=WARMUP, total_steps=STEPS)
        for number, batch in enumerate(batches.step(step)):
            batch = batch.to(engine.device)
            output = engine.forward(batch, entropies=True)
            engine.backward(output.loss)
            reported.add(batch, output, watched=True)
            loss += output.loss.detach() / plan.micro_batches
            if name != "mlm":  # which draws nothing
                drawn[step, plan.rows(number)] = output.detected.draw.tokens_BK.where(batch.masked_valid_BK, 0)
        result = engine.update(rate)
        losses.append(engine.world.sum_over_ranks(loss).item())
        norms.append(float(result.gradient_norm))

    return {
        "losses": losses,
        "norms": norms,
        "drawn": engine.world.sum_over_ranks(drawn).tolist(),
        "reported": reported.values(engine.world),
    }


def forced_draw(self: Dense, uniform_X: Tensor) -> tuple[Tensor, Tensor]:
    """Draws uniformly from the tokens that have a weight."""
    rank_XV = (self.weights_XV > 0).cumsum(-1)
    place_X = (uniform_X * rank_XV[..., -1]).long()
    tokens_X = (rank_XV <= place_X[..., None]).sum(-1)
    return tokens_X, (self.weights_XV.gather(-1, tokens_X[..., None]).squeeze(-1) / self.total_X).log()


def main(folder: str, result: str, group: str) -> None:
    world, shards = start_processes(), Shards(Path(folder))
    settings = TWO_RANKS if world.world_size == 2 else ONE_RANK
    results: dict[str, Any] = {}
    for how in ("free", "forced"):  # in this order: what forces the draws stays
        if how == "forced":
            Dense.draw = forced_draw  # type: ignore[method-assign, assignment]
        steps = FORCED_STEPS if how == "forced" else STEPS
        results[how] = {
            objective: {name: train(setting, objective, shards, world, steps) for name, setting in settings.items()}
            for objective in OBJECTIVES[group][how]
        }
    if world.is_first:
        Path(result).write_text(json.dumps(results))
    leave(0)


if __name__ == "__main__":
    main(*[argument for argument in sys.argv[1:] if not argument.startswith("--local_rank")])
