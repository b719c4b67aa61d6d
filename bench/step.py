"""Speed of our pre-training step against the same ELECTRA step written with Hugging Face's classes, in one run.

    python bench/step.py --preset small --batch_size 16 --seq_length 128 --dtype fp32

All train generator and discriminator on the same random ids, replacements sampled from the generator, one AdamW
update a step, without data loading and DeepSpeed. They take turns, so that a machine whose speed drifts drifts for
all; each figure is the median of the counted steps.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch import nn
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from data_prep.command_line import run_command
from data_prep.config import StrictConfig
from data_prep.masking import masked_count
from pretrain.config import ModelConfig, ObjectiveName
from pretrain.data import Batch
from pretrain.electra import Electra
from pretrain.optim import parameter_groups
from pretrain.presets import preset, with_objective

VOCABULARY, MASK = 30_522, 103  # BERT's uncased vocabulary, which the paper uses
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class StepOptions(StrictConfig):
    """The command line of the benchmark."""

    preset: Literal["tiny", "small", "base"] = "small"
    """model sizes"""
    batch_size: int = 16
    """sequences a step"""
    seq_length: int = 128
    """word pieces a sequence"""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """precision of weights and activations"""
    steps: int = 5
    """steps counted, after one that is not"""


def main(options: StepOptions) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = random_batch(options).to(device)
    run = preset(options.preset).run
    contenders: dict[str, Callable[[], None]] = {"Hugging Face": hugging_face_step(run.model, batch, options, device)}
    names: tuple[ObjectiveName, ...] = ("electra", "hp_loss", "hp_dist")
    for name in names:
        objective = with_objective(run, name).objective
        model = Electra(run.model, objective, VOCABULARY, MASK).to(device, DTYPES[options.dtype])
        contenders[name] = our_step(model, batch)
    seconds = take_turns(contenders, options.steps, device)
    report(seconds, options, device)


def random_batch(options: StepOptions) -> Batch:
    """Full sequences of random ids, 15% of the positions masked."""
    shape = (options.batch_size, options.seq_length)
    slots = int(masked_count(options.seq_length))
    positions = torch.stack([torch.randperm(options.seq_length)[:slots].sort().values for _ in range(shape[0])])
    return Batch(
        input_ids_BL=torch.randint(1000, VOCABULARY, shape),
        attention_mask_BL=torch.ones(shape, dtype=torch.bool),
        token_type_ids_BL=torch.zeros(shape, dtype=torch.int64),
        masked_positions_BK=positions,
        masked_valid_BK=torch.ones_like(positions, dtype=torch.bool),
        uniforms_BK=torch.rand(positions.shape),
        masked_count=float(positions.numel()),
        token_count=float(shape[0] * shape[1]),
    )


def our_step(model: Electra, batch: Batch) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-4, eps=1e-6, fused=True)

    def step() -> None:
        model(batch).loss.backward()
        update(model, optimizer)

    return step


def hugging_face_step(
    model: ModelConfig, batch: Batch, options: StepOptions, device: torch.device
) -> Callable[[], None]:
    """The step as it is usually written: logits of every position, `torch.multinomial`, the classes' own losses."""
    generator, discriminator = hugging_face_pair(model)
    both = nn.ModuleList((generator, discriminator)).to(device, DTYPES[options.dtype])
    optimizer = torch.optim.AdamW(both.parameters(), lr=1e-4, eps=1e-6, fused=True)
    masked_BL = torch.zeros_like(batch.attention_mask_BL).scatter(1, batch.masked_positions_BK, True)
    inputs = {"attention_mask": batch.attention_mask_BL.long(), "token_type_ids": batch.token_type_ids_BL}

    def step() -> None:
        ids_BL = batch.input_ids_BL
        labels_BL = ids_BL.where(masked_BL, -100)
        mlm = generator(input_ids=ids_BL.masked_fill(masked_BL, MASK), labels=labels_BL, **inputs)
        with torch.no_grad():
            sampled = torch.multinomial(mlm.logits[masked_BL].float().softmax(-1), 1).squeeze(-1)
        replaced_BL = ids_BL.masked_scatter(masked_BL, sampled)
        detected = discriminator(input_ids=replaced_BL, labels=(replaced_BL != ids_BL).long(), **inputs)
        (mlm.loss + 50.0 * detected.loss).backward()
        update(both, optimizer)

    return step


def hugging_face_pair(model: ModelConfig) -> tuple[ElectraForMaskedLM, ElectraForPreTraining]:
    """Generator and discriminator of the same sizes, word embeddings shared; relative position it does not have."""
    pair = []
    for encoder, wanted in (
        (model.generator(VOCABULARY), ElectraForMaskedLM),
        (model.discriminator(VOCABULARY), ElectraForPreTraining),
    ):
        fields = {name: value for name, value in vars(encoder).items() if not name.startswith("relative")}
        pair.append(wanted(ElectraConfig(**fields)))
    generator, discriminator = pair
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()
    return generator, discriminator


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def take_turns(contenders: dict[str, Callable[[], None]], steps: int, device: torch.device) -> dict[str, float]:
    """Median seconds a step of each, the contenders alternating."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(steps + 1):
        for name, step in contenders.items():
            started = time.perf_counter()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def report(seconds: dict[str, float], options: StepOptions, device: torch.device) -> None:
    tokens = options.batch_size * options.seq_length
    threads = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name()
    shape = f"{options.preset}, {options.batch_size} x {options.seq_length}, {options.dtype}"
    print(f"{shape}, {threads}, torch {torch.__version__}")
    for name, time_ in seconds.items():
        ratio = seconds["Hugging Face"] / time_
        print(f"  {name:13} {time_ * 1000:8.1f} ms  {tokens / time_:10,.0f} tokens/s  {ratio:5.2f}x Hugging Face")


if __name__ == "__main__":
    sys.exit(run_command(main, StepOptions, __doc__))
