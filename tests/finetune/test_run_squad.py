"""finetune/run_squad.py: one launch does all seeds, the next only missing ones; each user error is one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.config import SquadOptions
from finetune.running.records import RunRecord, read_records
from finetune.squad.files import read_squad
from finetune.squad.metrics import evaluate, evaluate_squad1
from tests.conftest import REPOSITORY
from tests.finetune.conftest import run_queue

SHORT = {"epochs": 1, "batch_size": 8, "max_question": 8, "deepspeed_config": REPOSITORY / "ds_configs/zero0_fp32.json"}


def run_here(model: Path, data_dir: Path, output: Path, /, **options: Any) -> list[RunRecord]:
    """Runs the command's function in this process; returns all records in the output folder."""
    given = {"model": str(model), "data_dir": data_dir, "output": output}
    run_queue(SquadOptions.from_values(given | SHORT | options))
    return read_records(output / "results.jsonl")


def test_the_files_of_a_run_have_each_questions_answers_odds_and_scores(
    stock_model: Path, squad_folder: Path, tmp_path: Path
) -> None:
    (record,) = run_here(stock_model, squad_folder, tmp_path, seeds=(1,))
    folder = tmp_path / "predictions" / record.run.folder_name()
    assert len(json.loads((folder / "null_odds.json").read_text())) == 16
    assert json.loads((folder / "predictions.json").read_text()).keys() == {f"q{number}" for number in range(16)}
    assert record.run.task == "SQuAD 2.0" and record.last.keys() == {"dev", "dev_best_threshold"}
    examples = json.loads((folder / "examples.json").read_text())["dev"]
    assert sum(examples["exact"]) / 16 == pytest.approx(record.last["dev"]["exact"])
    assert sum(examples["f1"]) / 16 == pytest.approx(record.last["dev"]["f1"])


def test_squad_1_reads_its_own_files(stock_model: Path, squad_folder: Path, tmp_path: Path) -> None:
    layout = json.loads((squad_folder / "train-v2.0.json").read_text())
    for paragraph in layout["data"][0]["paragraphs"]:
        paragraph["qas"] = [
            {key: entry[key] for key in ("id", "question", "answers")} for entry in paragraph["qas"] if entry["answers"]
        ]
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (tmp_path / name).write_text(json.dumps(layout))
    (record,) = run_here(stock_model, tmp_path, tmp_path / "out", version="1.1", seeds=(1,))
    assert (record.run.task, record.train_examples, record.last.keys()) == ("SQuAD 1.1", 12, {"dev"})


@pytest.fixture(scope="module")
def excerpts(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first paragraphs of the real files, in the layout of either version."""
    folder = tmp_path_factory.mktemp("excerpts")
    for split in ("train", "dev"):
        layout = json.loads((shared_data / "squad" / "article_split" / f"{split}-v2.0.json").read_text())
        layout["data"] = layout["data"][:1]
        layout["data"][0]["paragraphs"] = layout["data"][0]["paragraphs"][:3]
        (folder / f"{split}-v2.0.json").write_text(json.dumps(layout))
        for paragraph in layout["data"][0]["paragraphs"]:
            paragraph["qas"] = [entry for entry in paragraph["qas"] if entry["answers"]]
        (folder / f"{split}-v1.1.json").write_text(json.dumps(layout))
    return folder


@pytest.mark.parametrize(("model", "version"), [("stock_model", "2.0"), ("pretrained_model", "1.1")])
def test_real_questions_train_by_one_command(
    model: str, version: str, excerpts: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    given = {"version": version, "seeds": (1,), "max_question": None}
    (record,) = run_here(request.getfixturevalue(model), excerpts, tmp_path, **given)
    questions = read_squad(excerpts / f"dev-v{version}.json").questions
    folder = tmp_path / "predictions" / record.run.folder_name()
    predicted = json.loads((folder / "predictions.json").read_text())
    assert predicted.keys() == {question.id for question in questions}
    score = evaluate(questions, predicted) if version == "2.0" else evaluate_squad1(questions, predicted)
    assert record.last["dev"]["f1"] == pytest.approx(score["f1"] / 100)
    assert record.collapsed != "non-finite loss"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "nowhere"}, "nowhere"),
        ({"data_dir": "nowhere"}, "nowhere/train-v2.0.json"),
        ({"max_length": 64}, "max_length: got 64, expected at most the model's 32 positions"),
        ({"max_question": 30}, "max_length: got 32, expected at least max_question 30 + 4"),
        ({"stride": 0}, "stride"),
        ({"deepspeed_config": "nowhere.json"}, "deepspeed_config: cannot read nowhere.json"),
        ({"seeds": (1, -1)}, "seeds.1: got -1, expected: input should be greater than or equal to 0"),
    ],
)
def test_a_user_error_is_named_before_anything_is_written(
    change: dict[str, Any], message: str, stock_model: Path, squad_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_here(stock_model, squad_folder, tmp_path / "out", **change)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()
