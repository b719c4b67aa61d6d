"""finetune/running/run_list.py: each run happens once, its answers are saved, and data is prepared once per task."""

import json
from pathlib import Path
from typing import Any

import pytest

from finetune.config import GlueOptions, SquadOptions, TaggingOptions
from finetune.glue import job as glue
from finetune.presets import squad_settings_for
from finetune.running.model_folder import open_model, plan_runs
from finetune.running.records import RunIdentity, read_records, write_files
from finetune.running.run_list import Queue, unfinished
from finetune.squad import job as squad
from finetune.squad.files import VERSIONS, load_squad
from finetune.squad.job import make_job
from finetune.tagging import job as tagging
from tests.conftest import REPOSITORY
from tests.finetune.conftest import make_record


def test_runs_in_the_results_file_are_finished(tmp_path: Path) -> None:
    runs = [make_record(seed=seed).run for seed in (1, 2, 3)]
    assert unfinished(runs, tmp_path, {}) == [0, 1, 2]
    (tmp_path / "results.jsonl").write_text(make_record(seed=2).model_dump_json() + "\n")
    assert unfinished(runs, tmp_path, {}) == [0, 2]
    assert unfinished(runs, tmp_path, {"CoLA": ["CoLA.tsv"]}) == [0, 1, 2]
    write_files(tmp_path / "predictions" / runs[1].folder_name(), {"CoLA.tsv": "index"})
    assert unfinished(runs, tmp_path, {"CoLA": ["CoLA.tsv"]}) == [0, 2]


def test_a_task_is_prepared_once_and_each_run_saves_its_answers(
    stock_model: Path, squad_folder: Path, tmp_path: Path
) -> None:
    model, data = open_model(str(stock_model)), load_squad(VERSIONS["2.0"], squad_folder)
    config = REPOSITORY / "ds_configs" / "zero0_fp32.json"
    given = {"model": str(stock_model), "deepspeed_config": config, "max_question": 8, "output": tmp_path}
    options = SquadOptions(seeds=(1, 2, 1), **given)
    runs = [
        run
        for epochs in (1, 2)
        for run in plan_runs(
            options, model, "SQuAD 2.0", "b", squad_settings_for, options.overrides() | {"epochs": epochs}
        )
    ]
    prepared: list[RunIdentity] = []

    def prepare(run: RunIdentity) -> Any:
        prepared.append(run)
        return make_job(VERSIONS["2.0"], data, model.tokenizer, run.settings)

    assert Queue(runs, prepare, {VERSIONS["2.0"]: []}, [model], options).work() == 0
    records = read_records(tmp_path / "results.jsonl")
    assert [(record.run.seed, record.run.settings.epochs) for record in records] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert [run.settings.epochs for run in prepared] == [1, 2]
    assert [record.train_examples for record in records] == [16] * 4
    for record in records:
        folder = tmp_path / "predictions" / record.run.folder_name()
        official = json.loads((folder / "metrics.json").read_text())
        assert official["f1"] == pytest.approx(100 * record.last["dev"]["f1"])
        assert len(json.loads((folder / "predictions.json").read_text())) == 16
    assert len(list((tmp_path / "predictions").iterdir())) == 4


@pytest.mark.parametrize("task", ["CoLA", "SQuAD 2.0", "NER"])
def test_every_checkpoint_of_a_run_is_fine_tuned_with_every_seed_by_one_command(
    task: str, pretraining_run: Path, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, command, data, given = {
        "CoLA": (GlueOptions, glue, "cola_folder", {"task": ("CoLA",)}),
        "SQuAD 2.0": (SquadOptions, squad, "squad_folder", {}),
        "NER": (TaggingOptions, tagging, "tagging_folder", {"task": "NER"}),
    }[task]
    given |= {"model": str(pretraining_run), "data_dir": str(request.getfixturevalue(data)), "output": tmp_path}
    options = kind(steps=("40",), seeds=(1,), epochs=1, **given)
    assert command.run_queue(options) == 0
    assert command.run_queue(options.model_copy(update={"steps": ("all",), "seeds": (1, 2)})) == 0
    assert "3 of 4 runs to do" in capsys.readouterr().out
    records = read_records(tmp_path / "results.jsonl")
    assert sorted((record.step, record.run.seed) for record in records) == [(20, 1), (20, 2), (40, 1), (40, 2)]
    assert len({record.run.model_sha256 for record in records}) == 2
    assert {(record.run.task, record.model) for record in records} == {(task, str(pretraining_run))}
    assert len({record.train_losses for record in records}) == 4
