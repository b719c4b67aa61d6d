"""Claims about the model card of an export."""

import json
from pathlib import Path

import pytest

from pretrain.analysis.model_card import model_card
from pretrain.config import with_overrides
from pretrain.method.registry import objective_class
from pretrain.presets import with_objective
from pretrain.runs.folder import RunDescription
from tests.pretrain.conftest import OBJECTIVES


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_the_card_has_every_setting_of_the_run_and_no_local_path(
    objective: str, description: RunDescription, tmp_path: Path
) -> None:
    run = with_objective(description.run, objective)
    trained = objective_class(objective)
    if len(trained.encoders(run.model, 300)) == 2:
        run = with_overrides(run, ["model.embedding_sharing=gdes"])
    card = model_card(tmp_path, description.model_copy(update={"run": run}), 7, "en", "mit")
    for section in ("model", "objective", "optim"):
        for name, value in getattr(run, section).model_dump(mode="json").items():
            assert f"| {section}.{name} | {value} |" in card
    assert f"# {trained.title}\n" in card
    assert f"tags: [electra, {objective}]\n".replace(", electra]", "]") in card and "base_model" not in card
    assert "7 of 2,000 steps of 64 sequences" in card
    assert str(Path(description.data[0]).parent) not in card
    assert "None were taken." in card


def test_scores_belong_to_the_exported_step_and_evaluations_take_precedence(
    description: RunDescription, tmp_path: Path
) -> None:
    records = [{"kind": "held_out", "step": step, "accuracy_all": 0.9 + step / 1000} for step in (5, 10)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "metrics.json").write_text('{"step": 10, "accuracy_all": 0.8, "auc_all": 0.75}')
    assert "| detection accuracy, all positions | 0.9050 |" in model_card(tmp_path, description, 5, "en", "mit")
    card = model_card(tmp_path, description, 10, "en", "mit")
    assert "| detection accuracy, all positions | 0.8000 |" in card
    assert "| detection AUC, all positions | 0.7500 |" in card


def test_the_card_names_the_models_that_the_run_started_from_and_their_licenses(
    description: RunDescription, tmp_path: Path
) -> None:
    (tmp_path / "MiniLM").mkdir()
    (tmp_path / "MiniLM" / "README.md").write_text("---\ntags: [a]\nlicense: apache-2.0\n---\n\nlicense: none\n")
    names = (str(tmp_path / "MiniLM"), "google/electra-base-discriminator")
    card = model_card(tmp_path, description.model_copy(update={"init_from": names}), 7, "en", "mit")
    assert "license: mit\n" in card and 'base_model: ["MiniLM", "google/electra-base-discriminator"]\n' in card
    assert " It started from `MiniLM` (license apache-2.0) and `google/electra-base-discriminator`." in card
    assert str(tmp_path) not in card
