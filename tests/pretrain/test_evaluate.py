"""Claims about evaluation, export and the loaded model, on runs of a few steps trained by the real command."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import pytest
import torch
from safetensors.torch import load_file
from transformers import ElectraForMaskedLM

from electra_sampler.foundation.config import ConfigError
from pretrain.evaluate import EvaluateOptions, main
from pretrain.export import ExportOptions
from pretrain.export import main as export
from pretrain.huggingface.stored import read_stored
from pretrain.runs.folder import read_run
from pretrain.runs.models import build_model, load_trained
from tests.pretrain.conftest import SAMPLERS
from tests.pretrain.engine.checkpoints import flip_bit


@pytest.fixture(scope="module")
def train(
    shards_folder: Path, tmp_path_factory: pytest.TempPathFactory, launch: Callable[..., subprocess.Popen[str]]
) -> Callable[..., Path]:
    """Trains a tiny model by the real command; arguments are the command's, keywords are overrides."""

    def run(*arguments: str, **overrides: str) -> Path:
        folder = tmp_path_factory.mktemp("trained") / "run"
        overridden = [f"{name.replace('__', '.')}={value}" for name, value in overrides.items()]
        command = ("--preset", "tiny", "--data", shards_folder, "--output", folder, *arguments)
        process = launch(0, "pretrain/run.py", *command, "--set", "batch_size=8", *overridden)
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output
        return folder

    return run


SHORT = {"optim__steps": "6", "optim__warmup_steps": "2", "evaluate_every": "3", "log_every": "2"}


@pytest.fixture(scope="module")
def trained_run(train: Callable[..., Path]) -> Path:
    """Folder of a run of six steps of HP_Loss with a checkpoint in the middle."""
    return train(**SHORT, checkpoint_every="3")


@pytest.fixture(scope="module")
def trained_baseline(train: Callable[..., Path]) -> Path:
    """Folder of the same run with ELECTRA."""
    return train("--objective", "electra", **SHORT, checkpoint_every="3")


def test_an_evaluation_writes_metrics_and_readable_figures_to_the_run_folder(
    trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(EvaluateOptions(runs=(trained_run,), sequences=16, batch_size=8))
    assert re.search(
        r"p_G's regime: \d.*ELECTRA's authors.* nats (below|above) the unigram entropy", capsys.readouterr().out
    )
    metrics = json.loads((trained_run / "evaluation" / "metrics.json").read_text())
    assert (metrics["step"], metrics["sequences"], metrics["objective"]) == (6, 16, "hp_loss")
    assert 0 <= metrics["auc_all"] <= 1
    assert set(metrics["estimate_correlation"]) == {"original", "replaced", "all"}
    assert metrics["detection"].keys() == metrics["loss_estimate"].keys() == {"p_S", "p_G"}
    own = metrics["detection"]["p_S"]
    for name in ("accuracy_masked", "accuracy_all", "discriminator_loss", "replaced_share"):
        assert own[name][0] == pytest.approx(metrics[name])  # as reported by training
    assert own["discriminator_entropy"][0] == pytest.approx(metrics["discriminator_entropy"])
    assert own["auc_all"][0] == metrics["auc_all"]
    for name in ("mlm_accuracy", "mlm_loss"):
        assert metrics["generator"][name][0] == pytest.approx(metrics[name])
    assert {"original", "replaced", "all", "class_means"} < metrics["estimate_quality"]["pearson"].keys()
    for shares in metrics["max_probability"].values():
        assert sum(share[0] for share in shares) == pytest.approx(1)
    assert_readable(trained_run / "evaluation" / "comparison.png")


def assert_readable(*figures: Path) -> None:
    for path in figures:
        pixels = matplotlib.image.imread(path)
        assert pixels.shape[0] > 200 and pixels.std() > 0


def test_several_checkpoints_are_evaluated_and_crossed_over_steps(trained_run: Path) -> None:
    main(EvaluateOptions(runs=(trained_run,), sequences=16, steps=("all",)))
    folder = trained_run / "evaluation"
    results = json.loads((folder / "steps.json").read_text())
    assert [result["step"] for result in results] == [3, 6]
    assert_readable(folder / "steps.png")
    assert results[-1] == json.loads((folder / "metrics.json").read_text())
    assert results[0]["mlm_loss"] != results[1]["mlm_loss"]
    entries = json.loads((folder / "crossing.json").read_text())["entries"]
    assert [(entry["step"], entry["distribution"]) for entry in entries] == [
        (3, "p_G"), (3, "p_S"), (6, "p_G"), (6, "p_S"),
    ]  # fmt: skip


def test_a_step_without_checkpoint_is_refused_naming_the_existing_ones(trained_run: Path) -> None:
    with pytest.raises(ConfigError, match=r"steps: got 4, expected newest, all, or steps at which .* has .*: 3 6"):
        main(EvaluateOptions(runs=(trained_run,), steps=("3", "4")))


def test_runs_are_crossed_at_every_common_step_and_an_mlm_run_is_named_and_left_out(
    trained_run: Path,
    trained_baseline: Path,
    trained_mlm: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = (trained_baseline, trained_run, trained_mlm)
    main(EvaluateOptions(runs=runs, sequences=16, steps=("all",), output=tmp_path / "out"))
    printed = capsys.readouterr().out
    assert f"{trained_mlm} is not crossed: objective mlm has no discriminator" in printed
    assert_readable(tmp_path / "out" / "confidence.png")
    crossed = json.loads((tmp_path / "out" / "crossing.json").read_text())
    names = {str(trained_baseline), str(trained_run)}
    assert {entry["discriminator"] for entry in crossed["entries"]} == names
    assert len(crossed["entries"]) == 2 * 2 * 3 and len(crossed["differences"]) == 2 * 3
    metrics = json.loads((trained_run / "evaluation" / "metrics.json").read_text())
    own = next(
        entry
        for entry in crossed["entries"]
        if (entry["discriminator"], entry["sampler"], entry["distribution"], entry["step"])
        == (str(trained_run), str(trained_run), "p_S", 6)
    )
    assert own["auc_all"] == metrics["detection"]["p_S"]["auc_all"]
    assert f"minus {trained_baseline}:" in printed
    assert json.loads((trained_baseline / "evaluation" / "metrics.json").read_text())["objective"] == "electra"


def test_the_newest_checkpoints_are_crossed_also_at_different_steps_and_several_only_at_a_common_one(
    trained_run: Path, trained_baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    early, late = (tmp_path / name for name in ("early", "late"))
    for copy, missing in ((early, "step-00000006"), (late, "step-00000003")):
        shutil.copytree(trained_baseline, copy)
        shutil.rmtree(copy / "checkpoints" / missing)
    main(EvaluateOptions(runs=(trained_run, early), sequences=8, output=tmp_path / "newest"))
    crossed = json.loads((tmp_path / "newest" / "crossing.json").read_text())
    assert {(entry["sampler"], entry["step"]) for entry in crossed["entries"]} == {
        (str(trained_run), 6),
        (str(early), 3),
    }
    assert "not crossed" not in capsys.readouterr().out
    runs = (trained_run, early, late)
    main(EvaluateOptions(runs=runs, steps=("all",), sequences=8, output=tmp_path / "several"))
    assert "have no evaluated step in common and are not crossed" in capsys.readouterr().out
    assert not (tmp_path / "several" / "crossing.json").exists()


def test_runs_on_different_data_are_not_compared_on_text_that_one_may_have_seen(
    trained_run: Path, trained_baseline: Path, tmp_path: Path
) -> None:
    description = json.loads((trained_baseline / "run.json").read_text()) | {"data_sha256": "0" * 64}
    (tmp_path / "run.json").write_text(json.dumps(description))
    with pytest.raises(ConfigError, match=r"trained on other shards .* --data"):
        main(EvaluateOptions(runs=(trained_run, tmp_path)))


@pytest.fixture(scope="module")
def trained_mlm(train: Callable[..., Path]) -> Path:
    return train(
        "--row",
        "BERT",
        optim__steps="3",
        optim__warmup_steps="1",
        checkpoint_every="2",
        optim__adam_bias_correction="false",
        objective__mask_keep_fraction="0.15",
        model__relative_position="false",
    )


def test_a_masked_language_model_uses_the_same_commands(trained_mlm: Path, tmp_path: Path) -> None:
    main(EvaluateOptions(runs=(trained_mlm,), sequences=16, batch_size=8, steps=("all",)))
    metrics = json.loads((trained_mlm / "evaluation" / "metrics.json").read_text())
    assert metrics["objective"] == "mlm" and metrics["mlm_loss"] > 0
    assert metrics["generator"]["mlm_loss"][0] == pytest.approx(metrics["mlm_loss"])
    assert "discriminator_loss" not in metrics
    assert not (trained_mlm / "evaluation" / "comparison.png").exists()
    export(ExportOptions(run=trained_mlm, out=tmp_path / "out"))
    theirs, loading = ElectraForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    ours = read_stored(tmp_path / "out").encoder().state_dict()  # the starting point of fine-tuning
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.electra.state_dict().items())


HEADLESS_BIAS = {"objective__sampling_bias": "false", "objective__sampling_start": "normal"}


@pytest.mark.parametrize(
    ("objective", "switches"),
    [
        ("hp_dist", HEADLESS_BIAS),
        pytest.param("hp_loss", HEADLESS_BIAS, marks=pytest.mark.long),
        *(pytest.param(sampler, {}, marks=pytest.mark.long) for sampler in SAMPLERS),
    ],
)
def test_an_objective_is_trained_resumed_evaluated_and_exported(
    objective: str,
    switches: dict[str, str],
    train: Callable[..., Path],
    launch: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    run = train("--objective", objective, **SHORT, checkpoint_every="3", **switches)
    last = "checkpoints/step-00000006/weights.safetensors"
    weights = load_file(run / last)
    if switches:
        written = json.loads((run / "run.json").read_text())["run"]["objective"]
        assert written["sampling_bias"] is False and written["sampling_start"] == "normal"
        assert {name for name in weights if name.startswith("sampler_")} == {
            f"sampler_transform.{part}.{kind}" for part in ("dense", "LayerNorm") for kind in ("weight", "bias")
        }
    shutil.rmtree((run / last).parent)
    command = ("--preset", "tiny", "--data", read_run(run).data[0], "--output", run, "--objective", objective, "--set")
    overrides = [f"{name.replace('__', '.')}={value}" for name, value in (SHORT | switches).items()]
    process = launch(0, "pretrain/run.py", *command, "batch_size=8", "checkpoint_every=3", *overrides)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0 and "resumed from step 3" in output, output
    again = load_file(run / last)
    assert all(torch.equal(again[name], weights[name]) for name in weights)
    main(EvaluateOptions(runs=(run,), objective=(objective,), sequences=16, batch_size=8))
    assert (run / "evaluation" / "metrics.json").is_file()
    export(ExportOptions(run=run, objective=(objective,), out=tmp_path / "out"))
    read_stored(tmp_path / "out").encoder()


def test_an_evaluation_does_not_depend_on_its_batch_size(trained_run: Path) -> None:
    results = []
    for size in (4, 16):
        main(EvaluateOptions(runs=(trained_run,), sequences=16, batch_size=size))
        results.append(json.loads((trained_run / "evaluation" / "metrics.json").read_text()))
    for key in ("discriminator_loss", "mlm_loss", "replaced_share", "auc_all"):
        assert results[0][key] == pytest.approx(results[1][key], rel=1e-4)


def test_shards_with_another_tokenizer_are_refused(trained_run: Path, tmp_path: Path) -> None:
    description = json.loads((trained_run / "run.json").read_text()) | {"tokenizer_sha256": "0" * 64}
    (tmp_path / "run.json").write_text(json.dumps(description))
    with pytest.raises(ConfigError, match="another tokenizer"):
        main(EvaluateOptions(runs=(tmp_path,)))


def test_an_output_that_is_a_file_is_refused_before_anything_is_computed(trained_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "run.json").write_text((trained_run / "run.json").read_text())
    (tmp_path / "evaluation").touch()
    for runs, output in (((trained_run,), tmp_path / "file"), ((trained_run, tmp_path), None)):
        before = {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")}
        with pytest.raises(ConfigError, match=f"output: got {tmp_path}/.*, expected a folder"):
            main(EvaluateOptions(runs=runs, sequences=8, output=output))
        assert before == {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")}


def test_sequences_longer_than_the_model_are_refused(trained_run: Path, shards_folder: Path, tmp_path: Path) -> None:
    description = json.loads((trained_run / "run.json").read_text())
    description["run"]["model"]["max_positions"] = 16
    (tmp_path / "run.json").write_text(json.dumps(description))
    for data in (shards_folder, None):
        with pytest.raises(ConfigError, match=r"data: the sequences of .* are 32 long, expected at most 16, the run's"):
            main(EvaluateOptions(runs=(tmp_path,), data=data))


def test_the_loaded_model_is_the_trained_one(trained_run: Path) -> None:
    model, step = load_trained(trained_run)
    fresh = build_model(read_run(trained_run))
    assert step == 6
    assert model.generator.embeddings is model.discriminator.embeddings
    changed = [not torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True)]
    assert all(changed)


def test_a_run_without_checkpoint_is_one_clear_error(trained_run: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text((trained_run / "run.json").read_text())
    with pytest.raises(ConfigError, match="no complete checkpoint yet"):
        load_trained(tmp_path)


@pytest.mark.parametrize("command", ["evaluate all", "export"])
def test_if_all_checkpoints_are_damaged_that_is_one_clear_error_else_intact_ones_are_used(
    command: str, trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(trained_run, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation"))

    def go() -> None:
        if command == "export":
            export(ExportOptions(run=run, out=tmp_path / "out"))
        else:
            main(EvaluateOptions(runs=(run,), sequences=8, steps=("all",)))

    flip_bit(run / "checkpoints" / "step-00000006" / "complete.json")
    go()
    said = capsys.readouterr().out
    assert f"{run}/checkpoints/step-00000006 is not used: " in said and "step 3" in said and "step 6" not in said
    for written in (run / "evaluation", tmp_path / "out"):
        shutil.rmtree(written, ignore_errors=True)
    flip_bit(run / "checkpoints" / "step-00000003" / "weights.safetensors")
    with pytest.raises(ConfigError, match=rf"none in {run}/checkpoints is intact: step-00000006 \(.*step-00000003 \("):
        go()
    assert not (run / "evaluation").exists() and not (tmp_path / "out").exists()


def test_a_runs_export_contains_its_trained_discriminator(trained_run: Path, tmp_path: Path) -> None:
    export(ExportOptions(run=trained_run, out=tmp_path / "out"))
    model, _ = load_trained(trained_run)
    exported = read_stored(tmp_path / "out").encoder().state_dict()
    assert all(torch.equal(exported[name], weight) for name, weight in model.discriminator.state_dict().items())
    assert (tmp_path / "out" / "generator" / "model.safetensors").is_file()
    assert "6 of 6 steps" in (tmp_path / "out" / "README.md").read_text()
    assert not (tmp_path / "out.tmp").exists()
