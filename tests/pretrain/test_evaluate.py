"""Claims about evaluation, export and the loaded model, on runs of a few steps trained by the real command."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch
from transformers import ElectraForMaskedLM

from electra_sampler.foundation.config import ConfigError
from pretrain.evaluate import EvaluateOptions, main
from pretrain.export import ExportOptions
from pretrain.export import main as export
from pretrain.huggingface.stored import read_stored
from pretrain.runs.folder import read_run
from pretrain.runs.models import build_model, load_trained
from tests.conftest import flip_bit
from tests.pretrain.whole_runs import Launch, finished, run_arguments


@pytest.fixture(scope="module")
def train(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory, launch: Launch) -> Callable[..., Path]:
    """Trains a tiny model by the real command; arguments are overrides, then options."""

    def run(*arguments: str) -> Path:
        folder = tmp_path_factory.mktemp("trained") / "run"
        finished(launch(0, *run_arguments(shards_folder, folder, *arguments)))
        return folder

    return run


SHORT = ("optim.steps=6", "optim.warmup_steps=2", "evaluate_every=3", "log_every=2", "checkpoint_every=3")


@pytest.fixture(scope="module")
def trained_run(train: Callable[..., Path]) -> Path:
    """Folder of a run of six steps of HP_Loss with a checkpoint in the middle."""
    return train(*SHORT)


@pytest.fixture(scope="module")
def trained_baseline(train: Callable[..., Path]) -> Path:
    """Folder of the same run with ELECTRA."""
    return train(*SHORT, "--objective", "electra")


def metrics_of(run: Path) -> Any:
    return json.loads((run / "evaluation" / "metrics.json").read_text())


def test_an_evaluation_writes_metrics_and_readable_figures_to_the_run_folder(
    trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(EvaluateOptions(runs=(trained_run,), sequences=16, batch_size=8))
    assert re.search(
        r"p_G's regime: \d.*ELECTRA's authors.* nats (below|above) the unigram entropy", capsys.readouterr().out
    )
    metrics = metrics_of(trained_run)
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
    assert results[-1] == metrics_of(trained_run)
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
    found = {
        (entry["discriminator"], entry["sampler"], entry["distribution"], entry["step"]): entry["auc_all"]
        for entry in crossed["entries"]
    }
    own = found[str(trained_run), str(trained_run), "p_S", 6]
    assert own == metrics_of(trained_run)["detection"]["p_S"]["auc_all"]
    assert f"minus {trained_baseline}:" in printed
    assert metrics_of(trained_baseline)["objective"] == "electra"


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


TOO_LONG = r"data: the sequences of .* are 32 long, expected at most 16, the run's"


@pytest.mark.parametrize(
    ("change", "names_data", "said"),
    [
        # one may have seen the text of the other
        (lambda values: values.update(data_sha256="0" * 64), False, r"trained on other shards .* --data"),
        (lambda values: values.update(tokenizer_sha256="0" * 64), False, "another tokenizer"),
        (lambda values: values["run"]["model"].update(max_positions=16), False, TOO_LONG),
        (lambda values: values["run"]["model"].update(max_positions=16), True, TOO_LONG),
    ],
    ids=["other shards", "another tokenizer", "longer than the model", "longer ones that are named"],
)
def test_shards_that_do_not_fit_one_of_the_runs_are_refused(
    change: Callable[[Any], None], names_data: bool, said: str, trained_run: Path, shards_folder: Path, tmp_path: Path
) -> None:
    description = json.loads((trained_run / "run.json").read_text())
    change(description)
    (tmp_path / "run.json").write_text(json.dumps(description))
    with pytest.raises(ConfigError, match=said):
        main(EvaluateOptions(runs=(trained_run, tmp_path), data=shards_folder if names_data else None))


@pytest.fixture(scope="module")
def trained_mlm(train: Callable[..., Path]) -> Path:
    of_google = (
        "optim.adam_bias_correction=false",
        "objective.mask_keep_fraction=0.15",
        "model.relative_position=false",
    )
    return train("optim.steps=3", "optim.warmup_steps=1", "checkpoint_every=2", *of_google, "--row", "BERT")


def test_a_masked_language_model_uses_the_same_commands(trained_mlm: Path, tmp_path: Path) -> None:
    main(EvaluateOptions(runs=(trained_mlm,), sequences=16, batch_size=8, steps=("all",)))
    metrics = metrics_of(trained_mlm)
    assert metrics["objective"] == "mlm" and metrics["mlm_loss"] > 0
    assert metrics["generator"]["mlm_loss"][0] == pytest.approx(metrics["mlm_loss"])
    assert "discriminator_loss" not in metrics
    assert not (trained_mlm / "evaluation" / "comparison.png").exists()
    export(ExportOptions(run=trained_mlm, out=tmp_path / "out"))
    theirs, loading = ElectraForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    ours = read_stored(tmp_path / "out").encoder().state_dict()  # the starting point of fine-tuning
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.electra.state_dict().items())


@pytest.mark.parametrize("objective", ["hp_dist", pytest.param("hp_loss", marks=pytest.mark.long)])
def test_a_sampling_head_without_a_bias_is_trained_evaluated_and_exported(
    objective: str, train: Callable[..., Path], tmp_path: Path
) -> None:
    """Objectives with their default switches are in test_registry.py and above."""
    switches = ("objective.sampling_bias=false", "objective.sampling_start=normal")
    run = train(*SHORT, *switches, "--objective", objective)
    written = {"sampling_bias": False, "sampling_start": "normal"}
    assert written.items() <= read_run(run).run.objective.model_dump().items()
    head = {name for name in load_trained(run)[0].state_dict() if name.startswith("sampler_")}
    assert head == {
        f"sampler_transform.{part}.{kind}" for part in ("dense", "LayerNorm") for kind in ("weight", "bias")
    }
    main(EvaluateOptions(runs=(run,), sequences=16, batch_size=8))
    assert metrics_of(run)["objective"] == objective
    export(ExportOptions(run=run, out=tmp_path / "out"))
    read_stored(tmp_path / "out").encoder()


def test_an_output_that_is_a_file_is_refused_before_anything_is_computed(trained_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "run.json").write_text((trained_run / "run.json").read_text())
    (tmp_path / "evaluation").touch()
    of_output, of_run = ((trained_run,), tmp_path / "file", "output"), ((trained_run, tmp_path), None, "runs")
    for runs, output, field in (of_output, of_run):
        before = {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")}
        with pytest.raises(ConfigError, match=f"{field}: got {tmp_path}/.*, expected a folder"):
            main(EvaluateOptions(runs=runs, sequences=8, output=output))
        assert before == {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")}


def test_the_loaded_model_is_the_trained_one(trained_run: Path) -> None:
    model, step = load_trained(trained_run)
    assert step == 6
    assert model.get_submodule("generator.embeddings") is model.get_submodule("discriminator.embeddings")
    fresh = build_model(read_run(trained_run)).state_dict()
    assert not [name for name, weight in model.named_parameters() if torch.equal(weight, fresh[name])]


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
