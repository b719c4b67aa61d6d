"""finetune/running/run_list.py: each run happens once, its answers are saved, and data is prepared once per task."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from finetune.config import SquadConfig, SquadOptions
from finetune.running.job import LoadedTask
from finetune.running.records import read_records, write_files
from finetune.running.run_list import Queue
from finetune.squad.files import VERSIONS, load_squad
from finetune.squad.job import make_job
from pretrain.huggingface.stored import read_stored
from tests.finetune.conftest import FP32, make_record


def squad_queue(model: Path, output: Path, prepare: Any = None, files: Sequence[str] = (), **options: Any) -> Queue:
    given = {"model": str(model), "deepspeed_config": FP32, "max_question": 8, "output": output}
    loaded = LoadedTask(VERSIONS["2.0"], "b", prepare, files)
    return Queue(iter([loaded]), read_stored(model), SquadOptions.from_values(given | options))


def test_runs_in_the_results_file_are_finished(stock_model: Path, tmp_path: Path) -> None:
    queue = squad_queue(stock_model, tmp_path, seeds=(1, 2, 3))
    assert queue.unfinished() == [0, 1, 2]
    record = make_record(**dict(queue.runs[1]))
    (tmp_path / "results.jsonl").write_text(record.model_dump_json() + "\n")
    assert queue.unfinished() == [0, 2]
    queue = squad_queue(stock_model, tmp_path, files=["test.json"], seeds=(1, 2, 3))
    assert queue.unfinished() == [0, 1, 2]
    write_files(tmp_path / "predictions" / record.run.folder_name(), {"test.json": "{}"})
    assert queue.unfinished() == [0, 2]


def test_a_task_is_prepared_once_and_each_run_saves_its_answers(
    stock_model: Path, squad_folder: Path, tmp_path: Path
) -> None:
    data, prepared = load_squad(VERSIONS["2.0"], squad_folder), []

    def prepare(tokenizer: Any, settings: SquadConfig) -> Any:
        prepared.append(settings.epochs)
        return make_job(VERSIONS["2.0"], data, tokenizer, settings)

    for epochs in (1, 2):
        assert squad_queue(stock_model, tmp_path, prepare, seeds=(1, 2, 1), epochs=epochs).work() == 0
    records = read_records(tmp_path / "results.jsonl")
    assert [(record.run.seed, record.run.settings.epochs) for record in records] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert prepared == [1, 2]
    assert [record.train_examples for record in records] == [16] * 4
    for record in records:
        folder = tmp_path / "predictions" / record.run.folder_name()
        official = json.loads((folder / "metrics.json").read_text())
        assert official["f1"] == pytest.approx(100 * record.last["dev"]["f1"])
        assert len(json.loads((folder / "predictions.json").read_text())) == 16
    assert len(list((tmp_path / "predictions").iterdir())) == 4
