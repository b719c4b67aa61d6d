"""What of a plan was probably not meant: it would run, and waste its time.

Each doubt is one line that names the field, its value, why it is doubtful and what to do.
"""

import shutil
from collections.abc import Iterator

import torch

from foundation.files import existing_part
from pretrain.presets import BASE, SMALL
from pretrain.training.estimates import GIB, MASTER_BYTES, MOMENTS_BYTES, SPEEDS, Memory, memory_per_gpu
from pretrain.training.plan import Plan
from pretrain.training.run_folder import CHECKPOINTS

MOST_EPOCHS = 100
"""BERT read its text 40 times (Devlin et al. 2019, A.2); of causal models 4 times are nearly as good as new text, and
what 40 add is next to nothing (Muennighoff et al. 2023)."""
MOST_DAYS = 60
"""The paper's longest run took 5, on 16 GPUs."""
MOST_WARMUP = 0.5
"""Of the steps; the paper's runs have 0.01."""
PAPER_VOCABULARY, FAR = 30_522, 4
"""BERT's, which the paper takes; so many times smaller or larger is another experiment."""


def doubts(plan: Plan, parameters: int, on_gpus: bool) -> list[str]:
    """Of all that can be told before a run starts; where it is not `on_gpus`, no word of their memory."""
    found = [*_data(plan), *_held_out(plan), *_warmup(plan), *_sizes(plan), *disk_shortage(plan, parameters)]
    return found + ([*_memory(plan, parameters)] if on_gpus else [])


def too_long(days: float, machine: str) -> Iterator[str]:
    """A run whose end nobody waits for."""
    if days > MOST_DAYS:
        yield (
            f"optim.steps: the run would take {days:,.0f} days on {machine}, the paper's longest took 5 on 16 GPUs;"
            " take more processes, a smaller --preset, or --set optim.steps lower"
        )


def _data(plan: Plan) -> Iterator[str]:
    batch_size, steps = plan.run.batch_size, plan.run.optim.steps
    for folder, size, share in plan.shards.mixture:
        epochs = batch_size * steps * share / size
        if batch_size * share > size:
            yield (
                f"data: {folder} has {size:,} sequences, fewer than the {batch_size * share:,.0f} that a step takes of"
                " it, so a step would hold some of them twice; build it from more text, or --set batch_size lower"
            )
        if epochs > MOST_EPOCHS:
            enough = int(MOST_EPOCHS * size / (share * batch_size))
            fewer = f", or --set optim.steps={enough} or lower" if enough > plan.run.optim.warmup_steps else ""
            yield (
                f"data: {folder} has {size:,} sequences, and {steps:,} steps would read them {epochs:,.0f} times,"
                f" expected at most {MOST_EPOCHS} (BERT: 40); build it from more text{fewer}"
            )


def _held_out(plan: Plan) -> Iterator[str]:
    if plan.held_out is None:
        yield (
            f"run.evaluate_every: got {plan.run.evaluate_every:,}, but {plan.shards.folders[0]} has no held-out part,"
            " so nothing will be evaluated; build it with --held_out 0.005, or with more text"
        )


def _warmup(plan: Plan) -> Iterator[str]:
    warmup, steps = plan.run.optim.warmup_steps, plan.run.optim.steps
    if warmup > MOST_WARMUP * steps:
        yield (
            f"optim.warmup_steps: got {warmup:,} of {steps:,} steps, so the learning rate rises for most of the run;"
            f" --set optim.warmup_steps={steps // 10} or lower"
        )


def _sizes(plan: Plan) -> Iterator[str]:
    """Data that is not for the paper's models; other sizes are the user's own affair."""
    manifest, model = plan.shards.manifest, plan.run.model
    if model not in (SMALL.model, BASE.model):
        return
    if not PAPER_VOCABULARY / FAR <= manifest.vocab_size <= PAPER_VOCABULARY * FAR:
        yield (
            f"data: the vocabulary of {plan.shards.folders[0]} has {manifest.vocab_size:,} tokens, expected about"
            f" {PAPER_VOCABULARY:,} for a model of this size; build with another --vocab, or take --preset tiny"
        )
    if manifest.seq_length < model.max_positions / FAR:
        yield (
            f"data: the sequences of {plan.shards.folders[0]} have {manifest.seq_length} tokens at most, expected 128"
            f" to 512 for a model of this size: of its {model.max_positions} positions the others would never be"
            f" trained; build with --seq_length 512, or --set model.max_positions={manifest.seq_length}"
        )


def _memory(plan: Plan, parameters: int) -> Iterator[str]:
    needed = memory_of(plan, parameters).total
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        gpu, there = device.name, float(device.total_memory)
    else:
        speed = SPEEDS[plan.deepspeed.precision]
        gpu, there = speed.gpu, speed.memory
    if needed > there:
        yield (
            f"deepspeed_config: a process needs about {needed / GIB:,.0f} GiB, but a {gpu} has {there / GIB:,.0f}; take"
            " more processes, smaller micro-batches (--set deepspeed.train_micro_batch_size_per_gpu=N) or recompute"
            " activations (--set deepspeed.activation_checkpointing={})"
        )


def memory_of(plan: Plan, parameters: int) -> Memory:
    """Of one process."""
    model, manifest = plan.run.model, plan.shards.manifest
    return memory_per_gpu(plan.deepspeed, plan.world_size, parameters, model, manifest.vocab_size, manifest.seq_length)


def disk_needed(plan: Plan, parameters: int) -> int:
    """Bytes of all checkpoints that are there at once."""
    run = plan.run
    kept = run.keep_checkpoints + (run.optim.steps // run.keep_every if run.keep_every else 0)
    checkpoint = parameters * (MASTER_BYTES + MOMENTS_BYTES)
    return (kept + 1) * checkpoint  # one is written before one is removed


def disk_shortage(plan: Plan, parameters: int) -> Iterator[str]:
    """Checkpoints that the disk will not take, beside those of the run that it holds already."""
    place, needed = existing_part(plan.folder), disk_needed(plan, parameters)
    held = sum(file.stat().st_size for file in (plan.folder / CHECKPOINTS).glob("step-*/*"))
    free = shutil.disk_usage(place).free
    if needed > free + held:
        yield (
            f"output: checkpoints need {needed / GIB:.1f} GiB, but {free / GIB:.1f} GiB are free at {place};"
            " free some, name another --output, or --set keep_checkpoints lower or keep_every to 0 or higher"
        )
