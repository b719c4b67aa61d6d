"""Claims about the step's benchmark: contenders train on the same batch, and the table shows what was timed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bench.batches import random_batch
from bench.contender import Contender
from bench.models import fresh_model
from bench.peers.electra_step import shared_pair
from bench.step import StepBenchOptions, figures, table, take_turns
from pretrain.presets import preset, with_objective
from tests.conftest import REPOSITORY

SMALL = ("--preset", "tiny", "--batch_size", "2", "--seq_length", "32", "--steps", "1")


@pytest.mark.long
def test_the_command_prints_ratios_shares_memory_and_parts() -> None:
    command = (sys.executable, "bench/step.py", *SMALL, "--contenders", "eager", "hp_loss")
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    row = re.search(r"hp_loss +\S+ ms +\S+ tokens/s +\S+x eager +\S+% of the limit +(\S+) MB", finished.stdout)
    assert row and float(row[1].replace(",", "")) > 100
    shares = {
        name: int(share)
        for name, share in re.findall(r"([a-z ]+) [\d,]+ ms (\d+)%(?:,|$)", finished.stdout.splitlines()[-1])
    }
    parts = ("generator", "heads and sampling", "sampling head", "discriminator", "update", "communication", "data")
    assert tuple(name.strip() for name in shares) == parts and abs(sum(shares.values()) - 100) <= 3


def test_peer_and_our_model_have_the_same_sizes() -> None:
    run = with_objective(preset("small"), "electra")
    ours = fresh_model(run)
    theirs = torch.nn.ModuleList(shared_pair(run.model))
    table = sum(p.numel() for name, p in ours.named_parameters() if "relative_attention_bias" in name)
    assert sum(p.numel() for p in ours.parameters()) - table == sum(p.numel() for p in theirs.parameters())


@pytest.mark.long
def test_a_contender_that_ends_early_has_a_row_and_the_others_are_timed() -> None:
    options = StepBenchOptions(preset="tiny", batch_size=2, seq_length=32, steps=1, turns=1)
    late, killed, timed = contenders = [Contender(name, options) for name in ("eager", "electra", "hp_loss")]
    late.warm_up(0.1)
    killed.warm_up(300)
    timed.warm_up(300)
    os.kill(killed._process.pid, signal.SIGKILL)  # as the system does when memory runs out
    (rates,) = take_turns(contenders, options)
    for contender in contenders:
        contender.finish()
    found = figures(contenders, rates, options)
    assert re.search(r"eager +ended with -9 .*\n.* electra +ended with -9 .*\n.* hp_loss .* tokens/s", table(found))
    assert found["contenders"]["hp_loss"]["parts"].keys() >= {"generator", "discriminator"}


@pytest.mark.long
def test_results_of_finished_turns_survive_a_killed_command(tmp_path: Path) -> None:
    output = tmp_path / "table.json"
    command = (
        sys.executable,
        "bench/step.py",
        *SMALL,
        "--turns",
        "1000",
        "--contenders",
        "electra",
        "--output",
        output,
    )
    process = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)
    try:
        while not output.exists() and process.poll() is None:
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert json.loads(output.read_text())["contenders"]["electra"]["seconds"] > 0


def test_every_sequence_of_the_batch_is_full_and_15_percent_masked() -> None:
    """15% of 128, rounded up."""
    batch = random_batch(3, 128)
    assert batch.attention_mask_BL.all() and batch.masked_positions_BK.shape == (3, 20)
    assert all(len(set(row)) == 20 for row in batch.masked_positions_BK.tolist())
