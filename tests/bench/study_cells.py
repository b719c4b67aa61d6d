"""Cells of a small study, made from random answers without training."""

from pathlib import Path

import numpy as np
from sklearn.metrics import matthews_corrcoef, roc_auc_score

from bench.study.cell import checksum
from bench.study.file import Study
from bench.study.results import CellResult, Columns, Results
from pretrain.analysis.analysis import SUMMED, sequence_sums
from pretrain.analysis.observation import Judgment

SEQUENCES, LENGTH, EXAMPLES = 40, 12, 60

STUDY = Study.from_values(
    {
        "title": "A study of two rows",
        "preset": "tiny",
        "vocab_size": 300,
        "seq_length": LENGTH,
        "steps": 20,
        "warmup_steps": 2,
        "rows": [{"name": "base", "row": "ELECTRA"}, {"name": "better row", "row": "HP_Loss + Focal"}],
        "baseline": "base",
        "seeds": [0, 1, 2, 3, 4],
        "reference": {"row": "base", "seed": 9},
        "held_out_sequences": SEQUENCES,
        "probes": [
            {"task": "CoLA", "metric": "matthews", "epochs": 1, "seeds": [1, 2]},
            {"task": "SQuAD", "metric": "f1", "epochs": 1, "seeds": [1]},
        ],
        "measures": ["difficulty loss", "frozen accuracy", "frozen AUC", "BLiMP", "CoLA matthews"],
        "predictions": [
            {"text": "more is right", "measure": "BLiMP", "row": "better row", "minus": "base"},
            {"text": "less is right", "measure": "BLiMP", "row": "better row", "minus": "base", "expected": [None, 0]},
            {"text": "nothing decides this"},
        ],
    }
)


LANGUAGE = Study.from_values(
    STUDY.model_dump(exclude={"vocab_size", "reference"})
    | {
        "language": True,
        "blimp": [],
        "probes": [],
        "measures": ["agreement", "agreement at the end"],
        "predictions": [{"text": "more agrees", "measure": "agreement", "row": "better row", "minus": "base"}],
    }
)
"""The rows of the same study on the controlled language, without a reference."""


def judgment(seed: int, skill: float) -> Judgment:
    """A discriminator's answers, better with more skill; the replaced positions depend on nothing."""
    fixed, own = np.random.default_rng(0), np.random.default_rng(seed)
    masked = fixed.random(SEQUENCES * LENGTH) < 0.3
    replaced = masked & (fixed.random(len(masked)) < 0.8)
    d = np.where(replaced, skill, -skill) + own.normal(size=len(masked))
    return Judgment(d.astype(np.float32), replaced, masked, np.repeat(np.arange(SEQUENCES), LENGTH))


def make_cell(row: str, seed: int, skill: float = 1.0, **numbers: float) -> tuple[CellResult, dict[str, Columns]]:
    """Returns a cell whose numbers are computed from its examples by plain means and scikit-learn."""
    found: dict[str, float | None] = {
        "MLM loss": 4.0,
        "MLM accuracy": 0.2,
        "unigram entropy": 6.0,
        "own loss over entropy": 0.6,
        "frozen loss over entropy": 0.7,
    }
    examples: dict[str, Columns] = {}
    for place in ("difficulty", "frozen", "own"):
        answers = judgment(seed, skill)
        right = (answers.d > 0) == answers.replaced
        loss = np.logaddexp(0, np.where(answers.replaced, -answers.d, answers.d))
        found |= {f"{place} loss": float(loss.mean()), f"{place} accuracy": float(right[answers.masked].mean())}
        found[f"{place} AUC"] = float(roc_auc_score(answers.replaced, answers.d))
        examples[place] = dict(zip(SUMMED, sequence_sums(answers), strict=True))
    pairs = np.random.default_rng(seed).random(EXAMPLES) < 0.5 + 0.2 * skill
    found |= {"BLiMP": 100 * float(pairs.mean())}
    examples["BLiMP"] = {"right": 2 * pairs}
    target = np.arange(EXAMPLES) % 2
    predicted = [
        np.where(np.random.default_rng(s).random(EXAMPLES) < 0.7, target, 1 - target) for s in (seed, seed + 50)
    ]
    found["CoLA matthews"] = 100 * float(np.mean([matthews_corrcoef(target, one) for one in predicted]))
    examples["CoLA matthews"] = {"predicted": np.array(predicted), "target": np.array([target, target])}
    overlap, answerable = np.random.default_rng(seed).random(EXAMPLES), target == 1
    found["SQuAD f1"] = 100 * float(overlap.mean())
    columns_of = {"exact": overlap > 0.5, "f1": overlap, "answerable": answerable}
    examples["SQuAD f1"] = {name: column[None] for name, column in columns_of.items()}
    cell = CellResult(
        row=STUDY.row(row),
        seed=seed,
        commit=None,
        versions={},
        machine="",
        tokens=1e4,
        flops_per_token=4e6,
        numbers={**found, **numbers},
        reference=checksum(examples["frozen"]["replaced"]),
        seconds={"train": 10.0 + seed},
    )
    return cell, examples


def add(
    folder: Path, cell: CellResult, examples: dict[str, Columns], study: Study = STUDY, text: str = "0" * 64
) -> Results:
    """Adds a cell to the results in a folder, as another run of the study does, and returns them as they are read."""
    Results(folder, study).add(cell, examples, text)
    return Results(folder, study)


def add_cells(folder: Path, *keys: tuple[str, int], **numbers: float) -> Results:
    """Adds cells in which every row but the baseline is better."""
    for row, seed in keys:
        add(folder, *make_cell(row, seed, 1.0 if row == "base" else 1.6, **numbers))
    return Results(folder, STUDY)
