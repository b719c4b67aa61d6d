"""Claims about fine-tuning a stock ModernBERT, as which a modern encoder is exported."""

from pathlib import Path

import pytest

from finetune.config import GlueOptions, SquadOptions, TaggingOptions
from finetune.running.records import read_records
from tests.finetune.conftest import run_queue


@pytest.mark.parametrize(
    ("options", "task", "data"),
    [
        (GlueOptions, ("CoLA",), "cola_folder"),
        (SquadOptions, None, "squad_folder"),
        (TaggingOptions, "NER", "tagging_folder"),
    ],
    ids=["GLUE", "SQuAD", "tagging"],
)
def test_it_learns_every_kind_of_task(
    modern_model: Path, options: type, task: object, data: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    given = {
        "model": str(modern_model),
        "data_dir": str(request.getfixturevalue(data)),
        "output": tmp_path,
        "seeds": (1,),
    }
    given |= {"epochs": 4, "batch_size": 8, "learning_rate": 1e-2, "keep": "none"} | ({"task": task} if task else {})
    run_queue(options.from_values(given))
    (record,) = read_records(tmp_path / "results.jsonl")
    first, *_, last = record.train_losses
    assert first is not None and last is not None and last < first / 2
