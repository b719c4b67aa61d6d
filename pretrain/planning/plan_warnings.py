"""Warnings about a plan that would run but probably waste its time.

Each warning is one line that names the field, its value, why it is doubtful and what to do.
"""

import shutil
from collections.abc import Iterator

from data_prep.manifest import LESS_PADDING, MOST_PADDING, enough_to_hold_out
from data_prep.tokens import open_tokenizer
from electra_sampler.foundation.files import existing_part
from electra_sampler.foundation.progress import DAY, about
from pretrain.engine.hardware import slow_precision
from pretrain.huggingface.folders import has_tokenizer
from pretrain.method.registry import objective_class
from pretrain.planning.estimates import GIB, MASTER_BYTES, MOMENTS_BYTES, Machine, Memory, memory_per_process
from pretrain.planning.plan import Plan
from pretrain.presets import BASE, SMALL
from pretrain.runs.folder import CHECKPOINTS, DESCRIPTION

MOST_EPOCHS = 100
"""More epochs cause a warning. BERT read its text 40 times (Devlin et al. 2019, A.2). For causal models, up to 4 passes
are nearly as good as new text, and after 40 more passes add almost nothing (Muennighoff et al. 2023)."""
MOST_DAYS, MOST_UNCONFIRMED_DAYS = 60, 5
"""A longer run causes a warning; without a GPU, one longer than the second number starts only if its user names a
DeepSpeed file. The paper's longest run took 5 days, on 16 GPUs."""
MOST_WARMUP = 0.5
"""A larger share of warm-up steps causes a warning; the paper's runs have 0.01."""
PROBE = "\u00c9cole \u4e2d\u6587"
"""A text that shows every setting of a normalizer (case, accents, Chinese): `École` and two Chinese characters."""
PAPER_VOCABULARY, FAR = 30_522, 4
"""Size of BERT's vocabulary, which the paper uses; 4 times smaller or larger makes it a different experiment."""


def plan_warnings(plan: Plan, parameters: int, machine: Machine) -> list[str]:
    """Returns the warnings about a run on this machine before it starts."""
    return [
        *_data_and_schedule(plan),
        *_normalization(plan),
        *_sizes(plan),
        *disk_shortage(plan, parameters),
        *_memory(plan, parameters, machine),
        *_precision(plan, machine),
    ]


def too_long(plan: Plan, machine: Machine, steps: int | None = None, most: float = MOST_DAYS) -> Iterator[str]:
    """Yields a warning if the run, or its remaining `steps`, would take more than `most` days."""
    seconds = plan.seconds(machine, plan.run.optim.steps if steps is None else steps)
    if seconds > most * DAY:
        yield (
            f"optim.steps: the run would take {about(seconds)} on {machine.name} (the paper's longest: 5 days on 16"
            " GPUs); use more processes or --preset tiny, or --set optim.steps lower"
        )


def unconfirmed_days(plan: Plan, machine: Machine) -> Iterator[str]:
    """Yields a problem if a new run without a GPU would take days, and no DeepSpeed file was named to confirm it."""
    if plan.started is None and not plan.here.file.named and machine.capability == (0, 0):
        for warning in too_long(plan, machine, most=MOST_UNCONFIRMED_DAYS):
            yield (
                f"{warning}, or a GPU; to start it here all the same, add --deepspeed_config {plan.here.file.path.stem}"
            )


def _precision(plan: Plan, machine: Machine) -> Iterator[str]:
    if machine.capability == (0, 0) and (warning := slow_precision(plan.here.deepspeed.precision)):
        yield warning
    before, now = plan.started, plan.description
    if before and not plan.here.target.gpu and (before.precision, before.hardware) != (now.precision, now.hardware):
        yield (
            f"resume: {plan.folder / DESCRIPTION} was written on {before.hardware} in {before.precision}, this is"
            f" {now.hardware} in {now.precision}: the run continues, but losses agree only within rounding"
        )


def _data_and_schedule(plan: Plan) -> Iterator[str]:
    batch_size, steps, warmup = plan.run.batch_size, plan.run.optim.steps, plan.run.optim.warmup_steps
    padding = 1 - plan.shards.mixture.mean_length / plan.shards.manifest.seq_length
    if padding > MOST_PADDING:
        yield (
            f"data: {padding:.0%} of the computation would be on padding, expected at most {MOST_PADDING:.0%}; build"
            f" the shards with {LESS_PADDING}, or a shorter --seq_length"
        )
    for folder, size, share in plan.shards.mixture:
        epochs = batch_size * steps * share / size
        if batch_size * share > size:
            yield (
                f"data: {folder} has {size:,} sequences, fewer than the {batch_size * share:,.0f} that a step reads"
                " from it, so a step would contain duplicates; build it from more text, or --set batch_size lower"
            )
        if epochs > MOST_EPOCHS:
            enough = int(MOST_EPOCHS * size / (share * batch_size))
            fewer = f", or --set optim.steps={enough} or lower" if enough > warmup else ""
            yield (
                f"data: {folder} has {size:,} sequences, and {steps:,} steps would read them {epochs:,.0f} times,"
                f" expected at most {MOST_EPOCHS} (BERT: 40); build it from more text{fewer}"
            )
    if plan.held_out is None:
        share = enough_to_hold_out(plan.shards.manifest.books.documents.train)
        yield (
            f"run.evaluate_every: got {plan.run.evaluate_every:,}, but {plan.shards.folders[0]} has no held-out part,"
            f" so nothing will be evaluated; build into another --output with --held_out {share:g}, or use more text"
        )
    if warmup > MOST_WARMUP * steps:
        yield (
            f"optim.warmup_steps: got {warmup:,} of {steps:,} steps, so the learning rate rises for most of the run;"
            f" use --set optim.warmup_steps={steps // 10} or lower"
        )


def _normalization(plan: Plan) -> Iterator[str]:
    """Yields a warning for each model whose tokenizer treats case, accents or Chinese unlike the data's."""
    data = plan.shards.folders[0]
    tokenizers = {donor.folder: donor.tokenizer for donor in plan.donors or () if has_tokenizer(donor.tokenizer)}
    for donor, tokenizer in tokenizers.items():
        ours, theirs = (open_tokenizer(str(path)).normalized(PROBE) for path in (data / "tokenizer", tokenizer))
        if ours != theirs:
            yield (
                f"init_from: the tokenizer of {donor} treats case, accents or Chinese otherwise than that of {data};"
                " build the shards with the model's folder as --vocab"
            )


def _sizes(plan: Plan) -> Iterator[str]:
    """Yields warnings about data that does not fit the paper's model sizes; other sizes are not checked."""
    manifest, model, trained = plan.shards.manifest, plan.run.model, objective_class(plan.run.objective.name)
    if model.generator_hidden_size >= model.hidden_size and "generator" in trained.exports:
        yield (
            f"model.generator_hidden_size: got {model.generator_hidden_size}, expected less than hidden_size"
            f" ({model.hidden_size}), best a quarter to a half: with a generator as large as the discriminator the"
            " discriminator's loss collapses; --init_from the discriminator only, or --set model.generator_hidden_size"
            " lower"
        )
    if model not in (SMALL.model, BASE.model):
        return
    if not PAPER_VOCABULARY / FAR <= manifest.vocab_size <= PAPER_VOCABULARY * FAR:
        yield (
            f"data: the vocabulary of {plan.shards.folders[0]} has {manifest.vocab_size:,} tokens, expected about"
            f" {PAPER_VOCABULARY:,} for a model of this size; build with another --vocab, or use --preset tiny"
        )
    if manifest.seq_length < model.max_positions / FAR:
        yield (
            f"data: the sequences of {plan.shards.folders[0]} have {manifest.seq_length} tokens at most, expected 128"
            f" to 512 for a model of this size: the rest of its {model.max_positions} positions would never be trained;"
            f" build with --seq_length 512, or --set model.max_positions={manifest.seq_length}"
        )


def _memory(plan: Plan, parameters: int, machine: Machine) -> Iterator[str]:
    needed = sum(memory_of(plan, parameters, machine))
    if needed > machine.memory:
        yield (
            f"deepspeed_config: a process needs about {needed / GIB:,.1f} GiB, but {machine.name} has"
            f" {machine.memory / GIB:,.1f}; use more GPUs or smaller micro-batches"
            " (--set deepspeed.train_micro_batch_size_per_gpu=N), or recompute activations"
            " (--set deepspeed.activation_checkpointing={})"
        )


def memory_of(plan: Plan, parameters: int, machine: Machine) -> Memory:
    """Returns the estimated memory of one process."""
    return memory_per_process(
        plan.here.deepspeed, plan.here.target.processes, parameters, plan.sizes, machine.capability
    )


def disk_needed(plan: Plan, parameters: int) -> int:
    """Returns the bytes of all checkpoints that exist at the same time."""
    run = plan.run
    kept = run.keep_checkpoints + (run.optim.steps // run.keep_every if run.keep_every else 0)
    return (kept + 1) * parameters * (MASTER_BYTES + MOMENTS_BYTES)  # a new one is written before an old one is removed


def disk_shortage(plan: Plan, parameters: int) -> Iterator[str]:
    """Yields a warning if the checkpoints will not fit on the disk; the space of existing ones counts as free."""
    place, needed = existing_part(plan.folder), disk_needed(plan, parameters)
    held = sum(file.stat().st_size for file in (plan.folder / CHECKPOINTS).glob("step-*/*"))
    free = shutil.disk_usage(place).free
    if needed > free + held:
        yield (
            f"output: checkpoints need {needed / GIB:.1f} GiB, but only {free / GIB:.1f} GiB are free at {place};"
            " free some space, name another --output, or --set keep_checkpoints lower or keep_every to 0 or higher"
        )
