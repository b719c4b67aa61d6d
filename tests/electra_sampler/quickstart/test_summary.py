"""Claims about the quickstart's final table."""

import json
from pathlib import Path
from typing import Any

import pytest

from electra_sampler.quickstart.summary import median_score, read_results, show, table
from finetune.running.records import append_record
from tests.finetune.conftest import make_record


def losses(step: int, discriminator_loss: float) -> dict[str, float]:
    return {
        "step": step,
        "generator_loss": 5.0,
        "sampler_loss": 0.1,
        "discriminator_loss": discriminator_loss,
        "discriminator_entropy": 0.4,
    }


HELD_OUT = {
    "discriminator_loss": 0.3,
    "discriminator_entropy": 0.4,
    "auc_all": 0.8,
    "accuracy_masked": 0.6,
    "accuracy_all": 0.9,
    "estimate_correlation": {"original": 0.2, "replaced": None},
}
GOOD: dict[str, Any] = {
    "first": losses(1, 0.7),
    "last": losses(100, 0.3),
    "held_out": HELD_OUT,
    "pretrained": 0.5,
    "untrained": 0.1,
}


def changed(**changes: Any) -> dict[str, Any]:
    """Good results with these changes."""
    scores = {name: changes.pop(name) for name in list(changes) if name in GOOD}
    return GOOD | scores | {"held_out": HELD_OUT | changes}


def failures(**changes: Any) -> list[str]:
    return [row.name.strip() for row in table(**changed(**changes)) if row.passed is False]


def test_a_good_run_meets_every_demand() -> None:
    assert failures() == []


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"auc_all": 0.649}, "detection AUC"),
        ({"discriminator_loss": 0.381}, "L_D / entropy of the replaced share"),
        ({"discriminator_loss": float("nan")}, "L_D / entropy of the replaced share"),
        ({"pretrained": 0.1}, "pre-trained encoder"),
    ],
)
def test_each_demand_can_fail(changes: dict[str, Any], name: str) -> None:
    assert failures(**changes) == [name]


def test_the_table_shows_every_demand_and_every_failure() -> None:
    line = next(line for line in show(table(**changed(auc_all=0.5))).splitlines() if "AUC" in line)
    assert line.split() == ["detection", "AUC", "0.500", "at", "least", "0.65", "FAILED"]


def test_an_undefined_correlation_is_shown_as_a_dash() -> None:
    line = next(line for line in show(table(**GOOD)).splitlines() if "replaced" in line and "correlation" in line)
    assert line.endswith("-")


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    for seed, score in enumerate((0.1, 0.5, 0.4)):
        given: dict[str, Any] = {"seed": seed, "best": {"dev": {"matthews": 1.0}}}
        append_record(tmp_path / "glue" / "results.jsonl", make_record(score, **given))
        append_record(tmp_path / "glue" / "results.jsonl", make_record(score / 10, random_weights=True, **given))
    return tmp_path / "glue"


def test_a_score_is_the_median_over_seeds_of_the_last_epoch(glue: Path) -> None:
    assert median_score(glue, random_weights=False) == 0.4
    assert median_score(glue, random_weights=True) == pytest.approx(0.04)


def test_results_come_from_the_first_and_last_training_records_and_the_evaluation(tmp_path: Path, glue: Path) -> None:
    run = tmp_path / "run"
    (run / "evaluation").mkdir(parents=True)
    log = [{"kind": "train", **losses(step, loss)} for step, loss in ((50, 0.6), (100, 0.5), (150, 0.3))]
    log.insert(1, {"kind": "held_out", "step": 60})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    (run / "evaluation" / "metrics.json").write_text(json.dumps(HELD_OUT))
    results = read_results(run, glue)
    assert (results["first"]["step"], results["last"]["step"]) == (50, 150)
    assert results["held_out"] == HELD_OUT
    assert (results["pretrained"], results["untrained"]) == (0.4, pytest.approx(0.04))
