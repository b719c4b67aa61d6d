"""Claims about evaluation, export and the loaded model, on a run trained for a few steps by the real command."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import pytest
import torch
from transformers import ElectraForMaskedLM

from data_prep.config import ConfigError
from pretrain.evaluate import EvaluateOptions, main
from pretrain.export import ExportOptions
from pretrain.export import main as export
from pretrain.huggingface import load_encoder
from pretrain.models import build_model, load_trained
from pretrain.run_folder import read_run

FIGURES = ("training.png", "detection.png", "estimate.png", "comparison.png")


@pytest.fixture(scope="module")
def trained_run(
    shards_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    launch: Callable[..., subprocess.Popen[str]],
) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    overrides = ("optim.steps=6", "optim.warmup_steps=2", "batch_size=8", "evaluate_every=3", "log_every=2")
    arguments = ("--preset", "tiny", "--data", shards_folder, "--output", folder, "--set", *overrides)
    process = launch(0, "pretrain/run.py", *arguments)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return folder


def test_an_evaluation_leaves_metrics_and_readable_figures_in_the_run_folder(trained_run: Path) -> None:
    main(EvaluateOptions(runs=(trained_run,), sequences=16, batch_size=8))
    metrics = json.loads((trained_run / "evaluation" / "metrics.json").read_text())
    assert (metrics["step"], metrics["sequences"], metrics["objective"]) == (6, 16, "hp_loss")
    assert 0 <= metrics["auc_all"] <= 1
    assert set(metrics["estimate_correlation"]) == {"original", "replaced", "all"}
    assert metrics["detection"].keys() == metrics["loss_estimate"].keys() == {"p_S", "p_G"}
    assert metrics["detection"]["p_S"]["accuracy_all"][0] == pytest.approx(metrics["accuracy_all"])
    assert {"original", "replaced", "all", "class_means"} == metrics["estimate_quality"]["pearson"].keys()
    for shares in metrics["max_probability"].values():
        assert sum(shares) == pytest.approx(1)
    for name in FIGURES:
        pixels = matplotlib.image.imread(trained_run / "evaluation" / name)
        assert pixels.shape[0] > 200 and pixels.std() > 0


@pytest.fixture(scope="module")
def trained_mlm(
    shards_folder: Path, tmp_path_factory: pytest.TempPathFactory, launch: Callable[..., subprocess.Popen[str]]
) -> Path:
    folder = tmp_path_factory.mktemp("mlm") / "run"
    overrides = ("optim.steps=3", "optim.warmup_steps=1", "batch_size=8", "model.relative_position=false")
    switches = (
        "optim.adam_bias_correction=false",
        "optim.multiplicative_warmup=true",
        "objective.mask_keep_fraction=0.15",
    )
    arguments = ("--preset", "tiny", "--row", "BERT", "--data", shards_folder, "--output", folder)
    process = launch(0, "pretrain/run.py", *arguments, "--set", *overrides, *switches)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return folder


def test_a_masked_language_model_is_trained_evaluated_and_exported_by_the_same_commands(
    trained_mlm: Path, tmp_path: Path
) -> None:
    main(EvaluateOptions(runs=(trained_mlm,), sequences=16, batch_size=8))
    metrics = json.loads((trained_mlm / "evaluation" / "metrics.json").read_text())
    assert metrics["objective"] == "mlm" and metrics["mlm_loss"] > 0
    assert "discriminator_loss" not in metrics
    assert (trained_mlm / "evaluation" / "training.png").is_file()
    export(ExportOptions(run=trained_mlm, out=tmp_path / "out"))
    theirs, loading = ElectraForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    ours = load_encoder(tmp_path / "out").state_dict()  # what fine-tuning starts from
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.electra.state_dict().items())


def test_an_evaluation_does_not_depend_on_its_batch_size(trained_run: Path) -> None:
    results = []
    for size in (4, 16):
        main(EvaluateOptions(runs=(trained_run,), sequences=16, batch_size=size))
        results.append(json.loads((trained_run / "evaluation" / "metrics.json").read_text()))
    for key in ("discriminator_loss", "mlm_loss", "replaced_share", "auc_all"):
        assert results[0][key] == pytest.approx(results[1][key], rel=1e-4)


def test_shards_of_another_tokenizer_are_refused(trained_run: Path, tmp_path: Path) -> None:
    description = json.loads((trained_run / "run.json").read_text()) | {"tokenizer_sha256": "0" * 64}
    (tmp_path / "run.json").write_text(json.dumps(description))
    with pytest.raises(ConfigError, match="another tokenizer"):
        main(EvaluateOptions(runs=(tmp_path,)))


def test_the_loaded_model_is_the_trained_one(trained_run: Path) -> None:
    model, step = load_trained(trained_run)
    fresh = build_model(read_run(trained_run))
    assert step == 6
    assert model.generator.embeddings is model.discriminator.embeddings
    changed = [not torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True)]
    assert all(changed)


def test_a_run_without_checkpoint_is_one_clear_error(trained_run: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text((trained_run / "run.json").read_text())
    with pytest.raises(ConfigError, match="no whole checkpoint yet"):
        load_trained(tmp_path)


def test_a_runs_export_carries_its_trained_discriminator(trained_run: Path, tmp_path: Path) -> None:
    export(ExportOptions(run=trained_run, out=tmp_path / "out"))
    model, _ = load_trained(trained_run)
    exported = load_encoder(tmp_path / "out").state_dict()
    assert all(torch.equal(exported[name], weight) for name, weight in model.discriminator.state_dict().items())
    assert (tmp_path / "out" / "generator" / "model.safetensors").is_file()
    assert "6 of 6 steps" in (tmp_path / "out" / "README.md").read_text()
    assert not (tmp_path / "out.tmp").exists()
