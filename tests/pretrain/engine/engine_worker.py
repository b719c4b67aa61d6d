"""Worker of test_engine.py: trains under every ZeRO stage and precision in one job, and writes figures as JSON.

    deepspeed --num_gpus 2 tests/pretrain/engine/engine_worker.py FOLDER     or by plain python as a single process

The small model has what makes ZeRO-3 hard: two encoders share embeddings, and the embedding matrix, which is also the
output matrix, is used five times per forward, once without gradient.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path[0] = str(Path(__file__).resolve().parents[3])

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.engine import muon
from pretrain.engine.checkpoint import load, newest_valid, save
from pretrain.engine.deepspeed_config import resolve
from pretrain.engine.optim import OptimConfig, learning_rate, parameter_groups
from pretrain.model.encoder import ElectraEncoder, Embeddings
from pretrain.model.sizes import EncoderConfig
from tests import deepspeed_values
from tests.deepspeed_values import values_of

REPOSITORY = Path(__file__).resolve().parents[3]
FP32 = ("zero0_fp32", "zero1_fp32", "zero2_fp32", "zero3_fp32")
BF16 = ("zero1_bf16", "zero2_bf16", "zero3_bf16")
FP16 = ("zero1_fp16", "zero2_fp16")
VARIANTS = tuple(name for name in sorted(deepspeed_values.VARIANTS) if name.count("_") > 1)
"""Overrides that change only memory and time."""
ALONE = ("zero0_fp32", "zero1_fp32", "zero2_bf16", "zero1_fp16")
"""Files under which one process trains too, by a shorter way without summing gradients over ranks."""
MUON = (*FP32, "zero2_bf16", "zero3_bf16", "zero1_bf16_offload")
"""Files under which Muon trains too."""
VOCABULARY, LENGTH, BATCH, MICRO_BATCH = 61, 12, 16, 4
STEPS, SAVED_AT = 6, 3
RECOMPUTED = ("zero0_fp32", "zero1_bf16", "zero3_bf16")
"""Files under which layers are recomputed, one for each back end; two steps show it."""
OPTIM = OptimConfig(lr=5e-3, steps=STEPS, warmup_steps=2)


class SmallElectra(nn.Module):
    """A small pair whose loss is a sum over real tokens; odd sizes force padded partitions in every stage."""

    def __init__(self) -> None:
        super().__init__()
        config = EncoderConfig(
            vocab_size=VOCABULARY,
            embedding_size=10,
            hidden_size=14,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=22,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        embeddings = Embeddings(config)
        self.generator = ElectraEncoder(config, embeddings)
        self.discriminator = ElectraEncoder(config, embeddings)
        self.projection = nn.Linear(14, 10)
        self.output_bias = nn.Parameter(torch.zeros(VOCABULARY))
        self.head = nn.Linear(14, 1)

    def forward(self, ids_BL: Tensor, real_BL: Tensor) -> dict[str, Tensor]:
        words = self.discriminator.embeddings.word_embeddings
        segments_BL = torch.zeros_like(ids_BL)
        masked_ids_BL = torch.where(torch.arange(LENGTH) % 4 == 0, 3, ids_BL)
        hidden_BLE = self.projection(self.generator(masked_ids_BL, real_BL, segments_BL))
        scores_BLV = words(hidden_BLE, F.linear).float() + self.output_bias.float()
        with torch.no_grad():
            words(hidden_BLE, F.linear)
        drawn_BL = (ids_BL * 7 + 1) % VOCABULARY
        drawn_score_BL = (words(drawn_BL).float() * hidden_BLE.float()).sum(-1)
        replaced_ids_BL = torch.where(torch.arange(LENGTH) % 4 == 0, drawn_BL, ids_BL)
        d_BL = self.head(self.discriminator(replaced_ids_BL, real_BL, segments_BL)).squeeze(-1).float()
        loss_BL = (
            F.cross_entropy(scores_BLV.transpose(1, 2), ids_BL, reduction="none")
            + drawn_score_BL.square()
            + 50 * F.binary_cross_entropy_with_logits(d_BL, (replaced_ids_BL != ids_BL).float(), reduction="none")
        )
        return {"loss_sum": loss_BL.where(real_BL, 0.0).sum(), "d_BL": d_BL.detach()}


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    """Ids, and which of them are real; sequence lengths differ, so micro-batches have different weights."""
    generator = torch.Generator().manual_seed(step)
    ids_BL = torch.randint(5, VOCABULARY, (BATCH, LENGTH), generator=generator)
    lengths_B1 = torch.randint(2, LENGTH + 1, (BATCH, 1), generator=generator)
    return ids_BL, torch.arange(LENGTH) < lengths_B1


def small_model(seed: int = 0) -> SmallElectra:
    torch.manual_seed(seed)
    return SmallElectra()


def rate(step: int) -> float:
    return learning_rate(step, base=OPTIM.lr, warmup_steps=OPTIM.warmup_steps, total_steps=OPTIM.steps)


def plain_losses() -> list[float]:
    """Losses of the same training without DeepSpeed: one process, the whole batch at once, PyTorch's AdamW."""
    model = small_model()
    optimizer = torch.optim.AdamW(parameter_groups(model, OPTIM.weight_decay), betas=OPTIM.betas, eps=OPTIM.eps)
    losses = []
    for step in range(STEPS):
        ids_BL, real_BL = batch_of(step)
        loss = model(ids_BL, real_BL)["loss_sum"] / real_BL.sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), OPTIM.gradient_clipping)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Runner(NamedTuple):
    """An engine that can train any range of steps."""

    engine: Any

    def train(self, steps: range) -> list[float]:
        return [self.step(step)[0] for step in steps]

    def step(self, step: int, spoil: float = 1.0) -> tuple[float, Any]:
        """The step's loss and the engine's result; the differentiated loss is multiplied by `spoil`."""
        engine, world = self.engine, self.engine.world
        ids_BL, real_BL = batch_of(step)
        total = torch.zeros(())
        for micro in range(engine.config.accumulation_steps):
            first = (micro * world.world_size + world.rank) * MICRO_BATCH
            rows = slice(first, first + MICRO_BATCH)
            loss_sum = engine.forward(ids_BL[rows], real_BL[rows])["loss_sum"]
            loss = loss_sum * world.world_size * engine.config.accumulation_steps / real_BL.sum()
            engine.backward(loss * spoil)
            total += loss_sum.detach() / real_BL.sum()
        return float(engine.world.sum_over_ranks(total)), engine.update(rate(step))


def resolved_config(name: str, world_size: int, **sections: dict[str, Any]) -> Any:
    """The resolved configuration of a file with changes to its sections."""
    values = values_of(name) | {"train_micro_batch_size_per_gpu": MICRO_BATCH}
    for section, changes in sections.items():
        values[section] = values.get(section, {}) | changes
    device_type = "cuda" if "fp16" in values else "cpu"  # see `bench.gpu.declared`
    return resolve(
        values,
        batch_size=BATCH,
        world_size=world_size,
        device_type=device_type,
        clipping=OPTIM.gradient_clipping,
    )


def make_runner(
    name: str, world: Any, seed: int = 0, lr_scale: Any = lambda name: 1.0, muon: bool = False, **sections: Any
) -> Runner:
    """A new engine under a file with changes to its sections."""
    from pretrain.engine.engine import Engine

    model = small_model(seed)
    groups = parameter_groups(model, OPTIM.weight_decay, lr_scale=lr_scale, muon=muon)
    return Runner(Engine(model, groups, resolved_config(name, world.world_size, **sections), world))


def same_states(one: Any, other: Any) -> bool:
    """Bitwise equality on the first rank, which alone holds states."""
    pairs = [(one.weights, other.weights), *((one.moments[key], other.moments[key]) for key in one.moments)]
    numbers = [(state.adam_steps, state.loss_scale, state.moments.keys()) for state in (one, other)]
    return numbers[0] == numbers[1] and all(
        left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
        for left, right in pairs
    )


def train_and_resume(name: str, world: Any, folder: Path, muon: bool = False) -> dict[str, Any]:
    """Trains and saves a checkpoint; then a new engine with other weights resumes from it.

    Each rank creates a different model; the first rank's counts.
    """
    runner = make_runner(name, world, seed=world.rank, muon=muon)
    losses = runner.train(range(SAVED_AT))
    state = runner.engine.full_state()
    if world.is_first:
        save(folder / name, SAVED_AT, state, {"name": name}, keep_last=1)
    losses += runner.train(range(SAVED_AT, STEPS))
    end = runner.engine.full_state()

    again = make_runner(name, world, seed=1, muon=muon)
    found = newest_valid(folder / name) if world.is_first else None
    again.engine.load_full_state(load(found)[0] if found else None)
    return {
        "losses": losses,
        "resumed": again.train(range(SAVED_AT, STEPS)),
        "same_end": same_states(end, again.engine.full_state()),
        "names": sorted(end.weights),
        "spoiled": spoiled_step(again, end),
    }


def is_small_model(weights: dict[str, Tensor], world: Any) -> bool:
    """Checks on the first rank that the weights are bitwise the model's initial ones."""
    made = dict(small_model().named_parameters()) if world.is_first else {}
    return weights.keys() == made.keys() and all(torch.equal(weights[name], made[name]) for name in made)


def largest_change(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    """Largest change of the weights without decay, on the first rank."""
    return max((float((after[n] - before[n]).abs().max()) for n in before if "bias" in n), default=0.0)


def spoiled_step(runner: Runner, before: Any) -> dict[str, Any]:
    """A step with a NaN gradient on one rank only; `before` is the state before the step."""
    world = runner.engine.world
    _, result = runner.step(0, float("nan") if world.rank == world.world_size - 1 else 1.0)
    after = runner.engine.full_state()
    unchanged = same_states(before, replace(after, loss_scale=before.loss_scale))
    return {"overflow": result.overflow, "unchanged": unchanged}


def loss_scale_under(spoiled: str, name: str, world: Any, **fp16: float) -> dict[str, list[Any]]:
    """Results of steps of which one rank's gradient (marked x) or loss (marked n) is infinite."""
    runner = make_runner(name, world, fp16=fp16)
    done = []
    for step, mark in enumerate(spoiled):
        last = world.rank == world.world_size - 1
        factor = {"x": 1e30, "n": float("nan")}.get(mark, 1.0) if last else 1.0
        done.append(runner.step(step, factor)[1])
    return {
        "overflow": [result.overflow for result in done],
        "loss_scale": [result.loss_scale for result in done],
        "fatal": [result.fatal for result in done],
    }


def scale_stories(name: str, world: Any) -> dict[str, Any]:
    """Results for a dynamic scale that falls to its floor, one that grows, and a fixed one."""
    small = {"initial_scale_power": 2, "hysteresis": 1}
    return {
        "falling": loss_scale_under("xxxx..", name, world, **small),
        "patient": loss_scale_under("xxxx..", name, world, **(small | {"hysteresis": 2})),
        "growing": loss_scale_under("...x....", name, world, **small, loss_scale_window=2),
        "fixed": loss_scale_under(".x.", name, world, loss_scale=64.0),
        "loss": loss_scale_under(".n.", name, world, **small),
    }


def continue_from(name: str, world: Any, folder: Path) -> list[float]:
    """Losses of the steps after a checkpoint written by a different number of ranks."""
    runner = make_runner(name, world, seed=1)
    found = newest_valid(folder / name) if world.is_first else None
    runner.engine.load_full_state(load(found)[0] if found else None)
    return runner.train(range(SAVED_AT, STEPS))


def first_step(name: str, world: Any, frozen: tuple[str, ...] = ()) -> dict[str, Any]:
    """What an engine starts with, and what its first step changes, under a scale of 0 for names that begin so."""
    runner = make_runner(name, world, world.rank, lambda name: float(not name.startswith(frozen)))
    before = runner.engine.full_state().weights
    runner.train(range(1))
    after = runner.engine.full_state().weights
    return {
        "same_start": is_small_model(before, world),
        "update": largest_change(before, after) / rate(0),
        "frozen": {name: torch.equal(before[name], after[name]) for name in before},
    }


def main(folder: Path) -> None:
    from bench.gpu.declared import declare
    from pretrain.job.processes import leave, start_processes

    world = start_processes()
    declare()
    own, other = folder / f"ranks-{world.world_size}", folder / f"ranks-{3 - world.world_size}"
    names = (*FP32, *BF16, *FP16) if world.world_size > 1 else ALONE
    continued = {name: continue_from(name, world, other) for name in FP32 if (other / name).is_dir()}
    figures = first_figures(names, world, own) | {"continued": continued}
    if world.is_first:
        (own / "figures.json").write_text(json.dumps(figures))
    leave(0)


def first_figures(names: tuple[str, ...], world: Any, own: Path) -> dict[str, Any]:
    """Figures of training from the beginning under each file; checkpoints are written to `own`."""
    figures: dict[str, Any] = {
        "first": {name: first_step(name, world) for name in names},
        "train": {name: train_and_resume(name, world, own) for name in names},
    }
    vars(muon)["bf16_is_faster"] = lambda: False  # so that stages agree to fp32's rounding
    known = (*names, *(VARIANTS if world.world_size > 1 else ()))
    figures["muon"] = {name: train_and_resume(name, world, own / "muon", muon=True) for name in MUON if name in known}
    figures["frozen"] = {name: first_step(name, world, ("generator.encoder",)) for name in FP32 if name in names}
    figures["recomputed"] = {
        name: make_runner(name, world, activation_checkpointing={}).train(range(2))
        for name in RECOMPUTED
        if name in names
    }
    if world.world_size > 1:
        figures |= variant_figures(world)
        fp16 = resolved_config("zero1_fp16", world.world_size).json["fp16"]
        runner = make_runner("zero3_bf16", world, seed=world.rank, bf16={"enabled": False}, fp16=fp16)
        figures["starts"]["zero3_fp16"] = is_small_model(runner.engine.full_state().weights, world)
    figures["scales"] = scale_stories("zero1_fp16", world)
    figures["shared"] = [None] * world.world_size
    dist.all_gather_object(figures["shared"], world.share({"rank": world.rank}))
    return figures


def variant_figures(world: Any) -> dict[str, Any]:
    """Under each override: whether an engine starts from the first rank's weights, and its first losses."""
    figures: dict[str, Any] = {"starts": {}, "variants": {}}
    for name in VARIANTS:
        runner = make_runner(name, world, seed=world.rank)
        figures["starts"][name] = is_small_model(runner.engine.full_state().weights, world)
        figures["variants"][name] = runner.train(range(SAVED_AT))
    return figures


if __name__ == "__main__":
    main(Path(next(argument for argument in sys.argv[1:] if not argument.startswith("--"))))
