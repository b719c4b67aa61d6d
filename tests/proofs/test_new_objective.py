"""Claims about new objectives: one class and one registry line make one train, resume, evaluate and export."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining

from pretrain.huggingface.folders import load_encoder
from pretrain.method.objectives import objective_class
from tests.pretrain.conftest import shards_folder
from tests.warm import run

__all__ = ["shards_folder"]
STEPS = ("optim.steps=4", "optim.warmup_steps=1", "batch_size=8", "checkpoint_every=2", "evaluate_sequences=8")
NEW = {
    "hp_loss_power": "objective.exponent=3.0",
    "unigram": "objective.lambda2=40.0",
    "oracle": "objective.candidates=2",
}
"""Objectives that the paper does not have, each with a switch."""


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs one of the scripts in pretrain/."""
    return run(f"pretrain/{arguments[0]}.py", *arguments[1:])


def train(name: str, shards: Path, folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    options = ("--preset", "tiny", "--data", shards, "--output", folder, "--objective", name)
    return command("run", *options, "--set", *STEPS, *overrides)


@pytest.fixture(scope="module", params=NEW)
def trained(request: pytest.FixtureRequest, shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, named after its objective."""
    folder = tmp_path_factory.mktemp("new") / request.param
    done = train(request.param, shards_folder, folder, NEW[request.param])
    assert done.returncode == 0, done.stderr
    return folder


def test_it_trains_by_its_name_and_switch_and_resumes_bitwise(
    trained: Path, shards_folder: Path, tmp_path: Path
) -> None:
    key, value = NEW[trained.name].removeprefix("objective.").split("=")
    written = json.loads((trained / "run.json").read_text())["run"]["objective"]
    assert (written["name"], str(written[key])) == (trained.name, value) and "mixture" not in written
    again = shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(again / "checkpoints" / "step-00000004")
    done = train(trained.name, shards_folder, again, NEW[trained.name])
    assert done.returncode == 0 and "resumed from step 2" in done.stdout, done.stdout + done.stderr
    weights, resumed = (
        load_file(folder / "checkpoints/step-00000004/weights.safetensors") for folder in (trained, again)
    )
    assert weights.keys() == resumed.keys() and all(torch.equal(weights[name], resumed[name]) for name in weights)
    assert ("sampler_scores.bias" in weights) == (trained.name == "hp_loss_power")
    assert any(name.startswith("generator.") for name in weights) == (trained.name != "unigram")


def test_another_value_of_its_switch_is_another_run_and_other_objectives_switches_are_refused(
    trained: Path, shards_folder: Path, tmp_path: Path
) -> None:
    key, value = NEW[trained.name].split("=")
    other = train(trained.name, shards_folder, trained, f"{key}=1", "--dry_run")
    assert other.returncode == 2
    assert f"run.{key}: {trained} was started with {value}, this command says 1" in other.stderr
    refused = train(trained.name, shards_folder, tmp_path / "run", "objective.mixture=0.1", "--dry_run")
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        f"run.py: error: --set: got 'objective.mixture=0.1', which objective {trained.name} does not have;"
        " leave it out or choose hp_dist"
    ]


def test_it_is_evaluated_under_its_own_distribution_and_its_export_loads_in_transformers(
    trained: Path, tmp_path: Path
) -> None:
    done = command("evaluate", trained, "--sequences", "16", "--batch_size", "8")
    assert done.returncode == 0, done.stderr
    metrics = json.loads((trained / "evaluation" / "metrics.json").read_text())
    sampled = {"p_G"} if trained.name == "unigram" else {"p_G", "p_S"}
    assert metrics["objective"] == trained.name and metrics["detection"].keys() == sampled
    estimated = metrics["estimate_correlation"]["all"] is not None
    assert estimated == (trained.name == "hp_loss_power")
    done = command("page", trained)
    assert done.returncode == 0, done.stderr
    done = command("export", trained, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "generator").is_dir() == (trained.name != "unigram")
    card = (tmp_path / "out" / "README.md").read_text()
    key, value = NEW[trained.name].split("=")
    assert f"# {objective_class(trained.name).title}\n" in card and f"| {key} | {value} |" in card
    assert ("| MLM accuracy |" in card) == (trained.name != "unigram")
    weights = load_file(trained / "checkpoints/step-00000004/weights.safetensors")
    for name, weight in load_encoder(tmp_path / "out").state_dict().items():
        assert torch.equal(weight, weights.get(f"discriminator.{name}", weights.get(f"generator.{name}")))
    assert AutoModelForPreTraining.from_pretrained(tmp_path / "out", trust_remote_code=True).config.vocab_size == 300
