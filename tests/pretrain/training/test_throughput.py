"""Claims about speed and work done, against PyTorch's own count of operations."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pretrain.data.batches import Batch
from pretrain.data.shards import Shards
from pretrain.model.config import ModelConfig
from pretrain.presets import PRESETS
from pretrain.training.estimates import flops_per_token
from pretrain.training.throughput import Throughput
from tests.pretrain.conftest import new_model

VOCABULARY, LENGTH, MASKED = 2000, 64, 10  # ceil(0.15 x 64)
MODEL = ModelConfig(
    layers=2,
    hidden_size=128,
    heads=2,
    intermediate_size=512,
    embedding_size=128,
    generator_hidden_size=64,
    attention_dropout=0.0,
)


def full_batch(sequences: int) -> Batch:
    ids_BL = torch.randint(5, VOCABULARY, (sequences, LENGTH))
    return Batch(
        input_ids_BL=ids_BL,
        attention_mask_BL=torch.ones_like(ids_BL, dtype=torch.bool),
        token_type_ids_BL=torch.zeros_like(ids_BL),
        masked_positions_BK=torch.arange(MASKED).expand(sequences, MASKED),
        masked_valid_BK=torch.ones(sequences, MASKED, dtype=torch.bool),
        uniforms_BK=torch.rand(sequences, MASKED),
        keep_uniforms_BK=torch.ones(sequences, MASKED),
        masked_count=float(sequences * MASKED),
        token_count=float(sequences * LENGTH),
    )


@pytest.mark.parametrize("name", ["electra", "hp_loss", "hp_dist", "hp_loss_power", "oracle"])
def test_flops_of_a_step_are_those_counted_by_pytorch_forward_and_backward(name: str) -> None:
    """Within 3%: the discriminator's head and the generator's narrow input projection are not counted."""
    torch.manual_seed(0)
    model = new_model(name, MODEL, VOCABULARY).double()  # PyTorch does not count oneDNN's products in fp32
    with FlopCounterMode(display=False) as counter:
        model(full_batch(3)).loss.backward()
    per_token = counter.get_total_flops() / (3 * LENGTH)
    assert flops_per_token(MODEL, model.objective, VOCABULARY, LENGTH) == pytest.approx(per_token, rel=0.03)


def test_rates_and_sums_are_those_of_the_work_done(shards_folder: Path) -> None:
    run, shards = PRESETS["tiny"], Shards(shards_folder)
    throughput = Throughput(run, shards, step=100, peak=1e12)
    per_token = throughput.flops_per_token
    values = throughput.end(110, tokens=20_000, tokens_per_second=5_000)
    assert values["samples_per_second"] == pytest.approx(10 * run.batch_size / 4)
    assert values["tflops"] == pytest.approx(5_000 * per_token / 1e12)
    assert values["peak_share"] == pytest.approx(values["tflops"])
    assert values["tokens_so_far"] == pytest.approx(110 * run.batch_size * shards.mean_length, abs=1)
    assert values["flops_so_far"] == pytest.approx(values["tokens_so_far"] * per_token, rel=1e-4)
    assert throughput.end(111, 2_000, 2_000)["samples_per_second"] == pytest.approx(run.batch_size)


def test_position_in_the_data_is_counted_in_epochs_of_each_folder(shards_folder: Path) -> None:
    run, size = PRESETS["tiny"], len(Shards(shards_folder))
    values = Throughput(run, Shards(shards_folder), step=0, peak=1e12).end(100, 1, 1)
    assert values["epoch"] == pytest.approx(100 * run.batch_size / size)
    assert "epoch_of_folder" not in values

    held_out = shards_folder / "held_out"  # another folder built in the same way
    mixed = Shards(shards_folder, held_out, weights=(1, 3))
    values = Throughput(run, mixed, step=0, peak=1e12).end(100, 1, 1)
    index, _ = mixed.shuffled(np.arange(100 * run.batch_size), seed=0)
    read = [np.sum(index < size) / size, np.sum(index >= size) / len(Shards(held_out))]
    assert values["epoch_of_folder"] == pytest.approx(read, rel=1e-3)
    assert values["epoch"] == max(values["epoch_of_folder"])
