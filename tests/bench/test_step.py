"""Claims about the step's benchmark: contenders train on the same batch, and the table says what was timed."""

import re
import subprocess
import sys

import pytest
import torch

from bench.batches import MASK, VOCABULARY, random_batch
from bench.peers.electra_step import shared_pair
from pretrain.electra import Electra
from pretrain.presets import preset, with_objective
from tests.conftest import REPOSITORY


@pytest.mark.long
def test_the_command_prints_ratios_shares_memory_and_parts() -> None:
    options = ("--preset", "tiny", "--batch_size", "2", "--seq_length", "32", "--steps", "1")
    command = (sys.executable, "bench/step.py", *options, "--contenders", "eager", "hp_loss")
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    row = re.search(r"hp_loss +\S+ ms +\S+ tokens/s +\S+x eager +\S+% of the limit +(\S+) MB", finished.stdout)
    assert row and float(row[1].replace(",", "")) > 100
    shares = {
        name: int(share) for name, share in re.findall(r"([a-z ]+) (\d+)%(?:,|$)", finished.stdout.splitlines()[-1])
    }
    parts = ("generator", "heads and sampling", "discriminator", "update", "communication", "data")
    assert tuple(name.strip() for name in shares) == parts and abs(sum(shares.values()) - 100) <= 3


def test_peer_and_ours_have_the_same_sizes() -> None:
    run = with_objective(preset("small").run, "electra")
    ours = Electra(run.model, run.objective, VOCABULARY, MASK)
    theirs = torch.nn.ModuleList(shared_pair(run.model))
    table = sum(p.numel() for name, p in ours.named_parameters() if "relative_attention_bias" in name)
    assert sum(p.numel() for p in ours.parameters()) - table == sum(p.numel() for p in theirs.parameters())


def test_every_sequence_of_the_batch_is_full_and_masked_in_15_percent() -> None:
    """15% of 128, rounded up."""
    batch = random_batch(3, 128)
    assert batch.attention_mask_BL.all() and batch.masked_positions_BK.shape == (3, 20)
    assert all(len(set(row)) == 20 for row in batch.masked_positions_BK.tolist())
