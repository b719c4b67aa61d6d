"""Claims about a second phase that keeps Adam's state, on longer sequences, through the real command."""

import os
import signal
from pathlib import Path

import pytest
import torch

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from pretrain.engine.checkpoint import EngineState, load, newest_valid
from pretrain.engine.plain import MOMENTS
from pretrain.runs.log import read_metrics
from tests.pretrain.whole_runs import Launch, finished, losses, run_arguments, wait_for_step
from tests.reliability.phases_worker import STAGES

pytestmark = pytest.mark.long


def shards_of(length: int, shards_folder: Path, folder: Path) -> Path:
    """The text of `shards_folder` as sequences of this length, with the same vocabulary."""
    options = {"input": (shards_folder.parent / "raw",), "vocab": str(shards_folder.parent / "vocab")}
    sizes = {"seq_length": length, "held_out": 0.1, "shard_mb": 0.1, "workers": 1}
    build_shards(BuildOptions.from_values(options | sizes | {"output": folder / str(length)}))
    return folder / str(length)


def state_of(run: Path) -> EngineState:
    found = newest_valid(run / "checkpoints", say=pytest.fail)
    assert found is not None
    return load(found)[0]


def differing(ours: EngineState, theirs: EngineState) -> list[str]:
    """Names of the weights and moments that are not bitwise equal."""
    pairs = [(ours.weights, theirs.weights), *((ours.moments[key], theirs.moments[key]) for key in MOMENTS)]
    assert all(one.keys() == other.keys() for one, other in pairs)
    return [name for one, other in pairs for name in one if not torch.equal(one[name], other[name])]


def test_a_run_of_length_128_goes_on_at_256_and_is_bitwise_resumed_when_killed(
    shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    short, long = (shards_of(length, shards_folder, tmp_path) for length in (128, 256))
    one, two, killed = tmp_path / "one", tmp_path / "two", tmp_path / "killed"
    finished(launch(0, *run_arguments(short, one, "model.max_positions=128")))
    kept = ("--init_from", one, "--keep_optimizer")

    command = [run_arguments(long, folder, "model.max_positions=256", "optim.steps=12") for folder in (two, killed)]
    said = finished(launch(0, *command[0], *kept))
    assert f"keep_optimizer: starts from Adam's state after 24 updates, in {one}/checkpoints/step-00000024\n" in said
    assert state_of(two).adam_steps == 36
    weights = state_of(two).weights
    assert [len(weights[name]) for name in weights if name.endswith("position_embeddings.weight")] == [256]
    (first, *_), (*_, before) = read_metrics(two, "train"), read_metrics(one, "train")
    assert first["discriminator_loss"] == pytest.approx(before["discriminator_loss"], rel=0.25)

    process = launch(0, *command[1], *kept)
    wait_for_step(killed, 9)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert state_of(killed).adam_steps == 32
    assert "resumed from step 8 " in finished(launch(0, *command[1], *kept))
    assert losses(killed) == losses(two)
    assert not differing(state_of(killed), state_of(two))


def test_the_second_phase_begins_with_the_firsts_bits_at_every_zero_stage(
    shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    """Their first updates agree within rounding: the ranks and stages sum gradients in another order."""
    finished(launch(0, *run_arguments(shards_folder, tmp_path / "one", "model.dropout=0")))
    finished(launch(2, "tests/reliability/phases_worker.py", shards_folder, tmp_path / "one", tmp_path))
    saved, reference = state_of(tmp_path / "one"), state_of(tmp_path / "0")
    assert differing(reference, saved)
    for stage in STAGES:
        start = EngineState(**torch.load(tmp_path / str(stage) / "start.pt", weights_only=True))
        assert start.adam_steps == saved.adam_steps == 24
        assert not differing(start, saved)
        then = state_of(tmp_path / str(stage))
        assert then.adam_steps == 25
        for name, weight in reference.weights.items():
            assert torch.allclose(then.weights[name], weight, rtol=1e-4, atol=1e-6), (stage, name)
