"""Claims about the export command; its output is tested in huggingface/test_export.py."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from torch import Tensor

from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.config import ConfigError
from pretrain.config import with_overrides
from pretrain.data.shards import Shards
from pretrain.engine.checkpoint import Checkpoint, EngineState, load, save
from pretrain.export import ExportOptions, main
from pretrain.huggingface.stored import read_stored
from pretrain.presets import PRESETS, with_objective
from pretrain.runs.folder import CHECKPOINTS, write_run
from pretrain.runs.models import build_model
from tests.pretrain.runs.described import described


@pytest.mark.parametrize(
    ("out", "said"), [("file/out", "out: got .*/file/out, expected a folder, but .*/file is"), ("", "exists already")]
)
def test_an_export_never_overwrites_files_and_is_refused_below_one(out: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=said):
        main(ExportOptions(run=tmp_path / "run", out=tmp_path / out))


def untouched_run(folder: Path, shards: Path, objective: str, *overrides: str) -> Path:
    """A run folder with a checkpoint of the model as it starts."""
    description = described(with_overrides(with_objective(PRESETS["tiny"], objective), overrides), Shards(shards))
    write_run(folder, description, {})
    weights = {name: parameter.detach().clone() for name, parameter in build_model(description).named_parameters()}
    save(folder / CHECKPOINTS, 1, EngineState(1, {}, weights, {"exp_avg": weights}), {}, keep_last=1)
    return folder


def save_multiples(run: Path, factors: dict[int, float]) -> dict[str, Tensor]:
    """Saves multiples of a run's first weights as its checkpoints of these steps; returns the first ones."""
    state, _ = load(Checkpoint(run / CHECKPOINTS / "step-00000001", 1))
    for step, factor in factors.items():
        weights = {name: factor * weight for name, weight in state.weights.items()}
        save(run / CHECKPOINTS, step, EngineState(step, {}, weights, state.moments), {}, keep_last=9)
    return state.weights


@pytest.mark.parametrize(
    ("steps", "given", "said"),
    [(600, {}, ["the run is unfinished: this is step 1 of 600"]), (600, {"step": "1"}, []), (1, {}, [])],
    ids=["unfinished", "the step asked for", "finished"],
)
def test_an_export_of_an_unfinished_run_says_so(
    steps: int,
    given: dict[str, str],
    said: list[str],
    shards_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    schedule = (f"optim.steps={steps}", "optim.warmup_steps=0")
    run = untouched_run(tmp_path / "run", shards_folder, "electra", *schedule)
    main(ExportOptions.from_values({"run": run, "out": tmp_path / "out", **given}))
    assert capsys.readouterr().out.splitlines()[-1 - len(said) :] == [
        f"exported step 1 of {run} to {tmp_path / 'out'}",
        *said,
    ]


def test_averaged_weights_are_the_mean_of_the_newest_checkpoints_up_to_the_step(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untouched_run(tmp_path / "run", shards_folder, "electra", "optim.steps=9", "optim.warmup_steps=0")
    first = save_multiples(run, {2: 3.0, 3: 5.0, 4: 100.0})
    main(ExportOptions(run=run, out=tmp_path / "out", step="3", average=3))
    assert capsys.readouterr().out.endswith(f"to {tmp_path / 'out'}, averaged over 3 checkpoints\n")
    exported = read_stored(tmp_path / "out").encoder().state_dict()
    for name in ("encoder.layer.0.intermediate.dense.weight", "encoder.layer.1.attention.self.key.weight"):
        assert torch.allclose(exported[name], 3 * first[f"discriminator.{name}"], rtol=1e-6)  # (1 + 3 + 5) / 3
    card = (tmp_path / "out" / "README.md").read_text()
    assert "The weights are the mean of 3 checkpoints up to this step." in card and "None were taken." in card
    with pytest.raises(
        ConfigError, match=r"average: got 5, but .* has 4 intact checkpoints up to step 4; use --average 4"
    ):
        main(ExportOptions(run=run, out=tmp_path / "more", average=5))


@pytest.mark.parametrize("average", [1, 2])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda weight: weight / 0, "holds NaN or infinity in discriminator.encoder.layer.0.intermediate.dense.bias"),
        (
            lambda weight: weight[:1],
            "differs from this model in 1 parameter, first .*: saved \\(1,\\), expected \\(512,",
        ),
    ],
    ids=["not finite", "another shape"],
)
def test_weights_that_are_not_finite_or_do_not_fit_are_refused_in_one_line_and_nothing_is_written(
    damage: Callable[[Tensor], Tensor], said: str, average: int, shards_folder: Path, tmp_path: Path
) -> None:
    run = untouched_run(tmp_path / "run", shards_folder, "electra")
    state, _ = load(Checkpoint(run / CHECKPOINTS / "step-00000001", 1))
    name = "discriminator.encoder.layer.0.intermediate.dense.bias"
    state.weights[name] = damage(state.weights[name])
    save(run / CHECKPOINTS, 2, state, {}, keep_last=9)
    with pytest.raises(ConfigError, match=f"^checkpoint: {run}/checkpoints/step-00000002 {said}") as error:
        main(ExportOptions(run=run, out=tmp_path / "out", average=average))
    assert len(error.value.problems) == 1 and not (tmp_path / "out").exists()


def test_an_export_of_one_step_reads_no_other_checkpoint(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run may keep hundreds of them."""
    run = untouched_run(tmp_path / "run", shards_folder, "mlm")
    shutil.copytree(run / CHECKPOINTS / "step-00000001", run / CHECKPOINTS / "step-00000002")  # damaged: of step 1
    main(ExportOptions(run=run, out=tmp_path / "out", step="1"))
    assert "is not used" not in capsys.readouterr().out
    main(ExportOptions(run=run, out=tmp_path / "newest"))
    assert "step-00000002 is not used" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"^step: got 2, expected newest, all, or steps .*: 1$"):
        main(ExportOptions(run=run, out=tmp_path / "other", step="2"))


def test_every_kept_step_is_exported_as_alone_with_the_lines_that_upload_it_as_a_revision(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = untouched_run(tmp_path / "run", shards_folder, "electra"), tmp_path / "all of it"
    save_multiples(run, {20: 3.0})
    with pytest.raises(ConfigError, match="average: got 2 with --step all"):
        main(ExportOptions(run=run, out=out, step="all", average=2))
    main(ExportOptions(run=run, out=out, step="all"))
    names = ["step-00000001", "step-00000020"]
    assert capsys.readouterr().out.splitlines() == [
        *(f"exported step {int(name[5:])} of {run} to {out / name}" for name in names),
        "to upload: the newest, then each as a revision",
        f"hf upload OWNER/NAME '{out / names[1]}'",
        *(f"hf upload OWNER/NAME '{out / name}' --revision {name}" for name in names),
    ]
    for name in names:
        main(ExportOptions(run=run, out=tmp_path / name, step=str(int(name[5:]))))
        whole, alone = (
            {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            for folder in (out / name, tmp_path / name)
        )
        assert whole == alone and {"README.md", "generator/model.safetensors"} <= whole.keys()
    assert not [*tmp_path.rglob("*.tmp")]


def test_an_export_into_a_link_leaves_the_link_and_a_users_folder_beside_it_alone(
    shards_folder: Path, tmp_path: Path
) -> None:
    run = untouched_run(tmp_path / "run", shards_folder, "mlm")
    (tmp_path / "empty").mkdir()
    (tmp_path / "out").symlink_to("empty")
    for name in ("out.tmp", "empty.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    main(ExportOptions(run=run, out=tmp_path / "out"))
    assert (tmp_path / "out").is_symlink() and (tmp_path / "empty" / "model.safetensors").is_file()
    assert [path.read_text() for path in sorted(tmp_path.glob("*.tmp/*"))] == ["mine", "mine"]


def test_an_export_without_room_is_one_line_and_leaves_nothing(
    shards_folder: Path,
    tmp_path: Path,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = untouched_run(tmp_path / "run", shards_folder, "mlm")
    for out, why in ((small_disk / "out", "No space left on device"), (Path("/proc/out"), "No such file or directory")):
        monkeypatch.setattr("sys.argv", ["export.py", str(run), str(out)])
        assert run_command(main, ExportOptions, None) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(out) in line and why in line
    assert not [*small_disk.iterdir()]


@pytest.mark.parametrize(
    ("objective", "relative", "given", "license"),
    [("hp_loss", "true", {"license": "mit"}, "mit"), ("mlm", "false", {}, "unknown")],
)
def test_the_snippet_of_the_card_runs_in_the_exported_folder(
    objective: str,
    relative: str,
    given: dict[str, str],
    license: str,
    shards_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = untouched_run(tmp_path / "run", shards_folder, objective, f"model.relative_position={relative}")
    out = tmp_path / "out"
    main(ExportOptions.from_values({"run": run, "out": out, "language": "de", **given}))
    card = ModelCard.load(out / "README.md")
    assert (card.data.language, card.data.license, card.data.library_name) == ("de", license, "transformers")
    (snippet,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    monkeypatch.chdir(out)
    capsys.readouterr()
    exec(snippet, {})
    printed = capsys.readouterr().out
    assert ("replaced with probability" in printed) == (objective == "hp_loss") and printed
    settings = [json.loads((out / f"{name}.json").read_text()) for name in ("tokenizer_config", "config")]
    assert settings[0]["model_max_length"] == settings[1]["max_position_embeddings"]


def test_a_language_or_license_that_the_hub_cannot_know_is_refused(tmp_path: Path) -> None:
    for name, value in (("language", "German"), ("license", "The MIT")):
        with pytest.raises(ConfigError, match=f"{name}: .*{value}"):
            ExportOptions.from_values({"run": tmp_path, "out": tmp_path / "out", name: value})
