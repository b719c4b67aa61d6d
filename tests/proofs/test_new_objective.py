"""Claims about a new objective: one class and one registry line make it train, resume, evaluate and export."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining

from pretrain.huggingface.folders import load_encoder
from tests.conftest import REPOSITORY
from tests.pretrain.conftest import shards_folder

__all__ = ["shards_folder"]
STEPS = ("optim.steps=4", "optim.warmup_steps=1", "batch_size=8", "checkpoint_every=2", "evaluate_sequences=8")


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs one of the scripts in pretrain/."""
    return subprocess.run(
        [sys.executable, f"pretrain/{arguments[0]}.py", *map(str, arguments[1:])],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def train(shards: Path, folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    options = ("--preset", "tiny", "--data", shards, "--output", folder, "--objective", "hp_loss_power")
    return command("run", *options, "--set", *STEPS, *overrides)


@pytest.fixture(scope="module")
def trained(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("power") / "run"
    done = train(shards_folder, folder, "objective.exponent=3")
    assert done.returncode == 0, done.stderr
    return folder


def test_it_trains_by_its_name_and_switch_and_resumes_bitwise(
    trained: Path, shards_folder: Path, tmp_path: Path
) -> None:
    written = json.loads((trained / "run.json").read_text())["run"]["objective"]
    assert (written["name"], written["exponent"]) == ("hp_loss_power", 3.0) and "mixture" not in written
    run = shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    done = train(shards_folder, run, "objective.exponent=3")
    assert done.returncode == 0 and "resumed from step 2" in done.stdout, done.stdout + done.stderr
    weights, again = (load_file(folder / "checkpoints/step-00000004/weights.safetensors") for folder in (trained, run))
    assert weights.keys() == again.keys() and all(torch.equal(weights[name], again[name]) for name in weights)
    assert {"sampler_transform.dense.weight", "sampler_scores.bias"} < weights.keys()


def test_another_value_of_its_switch_is_another_run_and_other_objectives_switches_are_refused(
    trained: Path, shards_folder: Path, tmp_path: Path
) -> None:
    other = train(shards_folder, trained, "objective.exponent=2", "--dry_run")
    assert other.returncode == 2
    assert f"run.objective.exponent: {trained} was started with 3.0, this command says 2.0" in other.stderr
    refused = train(shards_folder, tmp_path / "run", "objective.mixture=0.1", "--dry_run")
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        "run.py: error: --set: got 'objective.mixture=0.1', which objective hp_loss_power does not have;"
        " leave it out or choose hp_dist"
    ]


def test_it_is_evaluated_under_its_own_distribution_and_its_export_loads_in_transformers(
    trained: Path, tmp_path: Path
) -> None:
    done = command("evaluate", trained, "--sequences", "16", "--batch_size", "8")
    assert done.returncode == 0, done.stderr
    metrics = json.loads((trained / "evaluation" / "metrics.json").read_text())
    assert metrics["objective"] == "hp_loss_power" and metrics["detection"].keys() == {"p_G", "p_S"}
    assert set(metrics["estimate_correlation"]) == {"original", "replaced", "all"}
    done = command("export", trained, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "out" / "README.md").read_text()
    assert (
        "# ELECTRA with replacements sampled by a power of the estimated loss" in card
        and "| objective.exponent | 3.0 |" in card
    )
    weights = load_file(trained / "checkpoints/step-00000004/weights.safetensors")
    for name, weight in load_encoder(tmp_path / "out").state_dict().items():
        assert torch.equal(weight, weights.get(f"discriminator.{name}", weights.get(f"generator.{name}")))
    assert AutoModelForPreTraining.from_pretrained(tmp_path / "out", trust_remote_code=True).config.vocab_size == 300
