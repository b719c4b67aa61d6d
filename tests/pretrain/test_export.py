"""Claims about the export command; its output is tested in huggingface/test_export.py."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from foundation.config import ConfigError
from pretrain.config import with_overrides
from pretrain.data.shards import Shards
from pretrain.engine.checkpoint import EngineState, save
from pretrain.export import ExportOptions, main
from pretrain.presets import PRESETS, with_objective
from pretrain.training.models import build_model
from pretrain.training.run_folder import CHECKPOINTS, describe, write_run
from tests.pretrain.huggingface.test_export import PYTHONS, without_project


def test_an_export_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"out: got {tmp_path}/file/out, expected a folder, but {tmp_path}/file is"):
        main(ExportOptions(run=tmp_path / "run", out=tmp_path / "file" / "out"))


def test_an_export_never_overwrites_files(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        main(ExportOptions(run=tmp_path / "run", out=tmp_path / "out"))


def untouched_run(folder: Path, shards: Path, objective: str, *overrides: str) -> Path:
    """A run folder with a checkpoint of the model as it starts."""
    description = describe(with_overrides(with_objective(PRESETS["tiny"].run, objective), overrides), Shards(shards))
    write_run(folder, description, {})
    weights = {name: parameter.detach().clone() for name, parameter in build_model(description).named_parameters()}
    save(folder / CHECKPOINTS, 1, EngineState(1, {}, weights, {"exp_avg": weights}), {}, keep_last=1)
    return folder


@pytest.mark.parametrize(("objective", "relative"), [("hp_loss", "true"), ("mlm", "false")])
def test_the_snippet_of_the_card_runs_in_the_exported_folder(
    objective: str, relative: str, shards_folder: Path, tmp_path: Path
) -> None:
    run = untouched_run(tmp_path / "run", shards_folder, objective, f"model.relative_position={relative}")
    out = tmp_path / "out"
    main(ExportOptions(run=run, out=out, language="de", license="mit"))
    card = ModelCard.load(out / "README.md")
    assert (card.data.language, card.data.license, card.data.library_name) == ("de", "mit", "transformers")
    (snippet,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    for python in PYTHONS:
        done = subprocess.run(
            [python, "-c", snippet], cwd=out, env=without_project(tmp_path), capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        assert ("replaced with probability" in done.stdout) == (objective == "hp_loss") and done.stdout
    settings = [json.loads((out / f"{name}.json").read_text()) for name in ("tokenizer_config", "config")]
    assert settings[0]["model_max_length"] == settings[1]["max_position_embeddings"]


def test_a_language_or_licence_that_the_hub_cannot_know_is_refused(tmp_path: Path) -> None:
    for name, value in (("language", "German"), ("license", "The MIT")):
        with pytest.raises(ConfigError, match=f"{name}: .*{value}"):
            ExportOptions.from_values({"run": tmp_path, "out": tmp_path / "out", name: value})
