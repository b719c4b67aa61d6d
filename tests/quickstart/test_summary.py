"""Claims about the quickstart's final table."""

import json
from pathlib import Path
from typing import Any

import pytest

from finetune.config import GlueConfig
from finetune.running.records import RunIdentity, RunRecord, append_record
from quickstart.summary import Row, show, table

HELD_OUT = {
    "discriminator_loss": 0.3,
    "discriminator_entropy": 0.4,
    "auc_all": 0.8,
    "accuracy_masked": 0.6,
    "accuracy_all": 0.9,
    "estimate_correlation": {"original": 0.2, "replaced": None},
}


def logged(step: int, discriminator_loss: float) -> dict[str, Any]:
    losses = {"generator_loss": 5.0, "sampler_loss": 0.1, "discriminator_entropy": 0.4}
    return {"kind": "train", "step": step, "discriminator_loss": discriminator_loss, **losses}


def record(seed: int, score: float, random_weights: bool) -> RunRecord:
    settings = GlueConfig(learning_rate=1e-3, epochs=1, batch_size=8, weight_decay=0, max_length=16)
    identity = RunIdentity(
        task="CoLA",
        seed=seed,
        model_sha256="",
        random_weights=random_weights,
        data_sha256="",
        settings=settings,
    )
    return RunRecord(
        run=identity,
        model="exported",
        model_size="small",
        train_examples=10,
        last={"dev": {"matthews": score}},
        best={"dev": {"matthews": 1.0}},
        train_losses=(0.5,),
        collapsed=None,
        seconds=1.0,
        precision="fp32",
        world_size=1,
    )


def rows_of(folder: Path, pretrained: float = 0.4, untrained: float = 0.04, **held_out: float) -> list[Row]:
    """The table of a good run with these changes; `pretrained` and `untrained` are medians of three seeds."""
    (folder / "evaluation").mkdir()
    lines = [logged(50, 0.6), {"kind": "held_out", "step": 60}, logged(100, 0.5), logged(150, 0.3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "evaluation" / "metrics.json").write_text(json.dumps(HELD_OUT | held_out))
    for seed, factor in enumerate((0.25, 1.5, 1.0)):
        append_record(folder / "results.jsonl", record(seed, factor * pretrained, random_weights=False))
        append_record(folder / "results.jsonl", record(seed, factor * untrained, random_weights=True))
    return table(folder, folder)


def test_a_good_run_meets_every_demand(tmp_path: Path) -> None:
    assert [row.passed for row in rows_of(tmp_path) if row.demand] == [True] * 3


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"auc_all": 0.649}, "detection AUC"),
        ({"discriminator_loss": 0.381}, "L_D / entropy of the replaced share"),
        ({"discriminator_loss": float("nan")}, "L_D / entropy of the replaced share"),
        ({"pretrained": 0.04}, "pre-trained encoder"),
    ],
)
def test_each_demand_can_fail(changes: dict[str, float], name: str, tmp_path: Path) -> None:
    assert [row.name.strip() for row in rows_of(tmp_path, **changes) if row.passed is False] == [name]


def test_the_table_shows_every_demand_and_every_failure(tmp_path: Path) -> None:
    text = show(rows_of(tmp_path, auc_all=0.5))
    line = next(line for line in text.splitlines() if "AUC" in line)
    assert line.split() == ["detection", "AUC", "0.500", "at", "least", "0.65", "FAILED"]


def test_the_values_are_first_and_last_records_the_evaluation_and_medians_over_the_seeds(tmp_path: Path) -> None:
    shown = {row.name.strip(): row.value for row in rows_of(tmp_path)}
    assert "pre-training, step 50 -> 150" in shown
    assert shown["discriminator loss L_D"] == "0.600 -> 0.300"
    assert shown["detection accuracy, masked / all"] == "0.600 / 0.900"
    assert shown["correlation of the estimate, original"] == "0.200"
    assert shown["correlation of the estimate, replaced"] == "-"  # undefined
    assert (shown["pre-trained encoder"], shown["the same head on an untrained encoder"]) == ("0.400", "0.040")
