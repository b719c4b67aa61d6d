"""finetune/running/run_list.py: each run happens once, its answers are saved, and data is prepared once per task.

A mistake in any command is named before anything is written.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.config import FinetuneOptions, GlueOptions, SquadConfig, SquadOptions, TaggingOptions
from finetune.running.job import LoadedTask
from finetune.running.records import read_records, write_files
from finetune.running.run_list import Queue
from finetune.squad.files import VERSIONS, load_squad
from finetune.squad.job import make_job
from pretrain.huggingface.stored import read_stored
from tests.finetune.conftest import FP32, make_record, run_queue


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


def test_a_copy_with_another_card_is_the_same_model_and_one_with_another_file_is_not(
    stock_model: Path, tmp_path: Path
) -> None:
    copy, runs = shutil.copytree(stock_model, tmp_path / "copy"), squad_queue(stock_model, tmp_path).runs
    (copy / "README.md").write_text("its scores")
    assert squad_queue(copy, tmp_path).runs == runs
    (copy / "notes.txt").write_text("trained longer")
    assert {run.model_sha256 for run in squad_queue(copy, tmp_path).runs}.isdisjoint(run.model_sha256 for run in runs)


def test_the_papers_grid_is_run_point_by_point_except_for_given_options(stock_model: Path, tmp_path: Path) -> None:
    points = squad_queue(stock_model, tmp_path, seeds=(1,), grid="paper").runs
    assert [run.settings.epochs for run in points] == [3, 4, 5]
    fixed = squad_queue(stock_model, tmp_path, seeds=(1,), grid="paper", epochs=1).runs
    assert [run.settings.epochs for run in fixed] == [1]


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


GLUE = {"task": ("CoLA",), "data_dir": "cola_folder", "epochs": 1, "batch_size": 32, "deepspeed_config": FP32}
SQUAD = {"data_dir": "squad_folder", "max_question": 8}
NER = {"task": "NER", "data_dir": "tagging_folder"}
KINDS: dict[str, tuple[type[FinetuneOptions], dict[str, Any]]] = {
    "GLUE": (GlueOptions, GLUE),
    "SQuAD": (SquadOptions, SQUAD),
    "tagging": (TaggingOptions, NER),
}
"""The command of each kind of task, and what it needs, its data by the name of a fixture."""


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("GLUE", {"task": ("COAL",)}, "task: got 'COAL', expected one of all, CoLA, SST-2"),
        ("GLUE", {"task": ("all",), "data_dir": "."}, "data_dir: . has none of GLUE's tasks"),
        ("GLUE", {"task": ("RTE",)}, "data_dir: no folder"),
        ("GLUE", {"epochs": 0}, "epochs: got 0, expected"),
        ("GLUE", {"max_length": 64}, "max_length: got 64, expected at most the model's 32"),
        ("GLUE", {"deepspeed_config": "nowhere.json"}, "deepspeed_config: cannot read nowhere.json"),
        ("GLUE", {"batch_size": 9, "deepspeed_config": "ds.json"}, "batch_size: got 9, expected a multiple of 2"),
        ("GLUE", {"set": ("deepspeed.train_micro_batch_size_per_gpu=3",)}, "batch_size: got 32, expected a multiple"),
        ("GLUE", {"set": ("deepspeed.bf16.enable=true",)}, "--set deepspeed.bf16.enable: unknown key; expected one of"),
        ("GLUE", {"set": ("layer_decay=2",)}, "layer_decay: got 2, expected: input should be less than or equal to 1"),
        ("GLUE", {"set": ("layer_decy=1",)}, "--set: got 'layer_decy', expected KEY=VALUE with a KEY from --list"),
        ("GLUE", {"set": ("layer_decay",)}, "layer_decay: got None, expected: input should be a valid number"),
        ("GLUE", {"set": ("epochs=2",)}, "--set: epochs is given more than once; give it once"),
        ("GLUE", {"set": ("layer_decay=1", "layer_decay=0.9")}, "layer_decay is given more than once; give it once"),
        ("SQuAD", {"model": "nowhere"}, "nowhere"),
        ("SQuAD", {"data_dir": "nowhere"}, "nowhere/train-v2.0.json"),
        ("SQuAD", {"max_length": 64}, "max_length: got 64, expected at most the model's 32 positions"),
        ("SQuAD", {"max_question": 30}, "max_length: got 32, expected at least max_question 30 + 4"),
        ("SQuAD", {"stride": 0}, "stride"),
        ("SQuAD", {"deepspeed_config": "nowhere.json"}, "deepspeed_config: cannot read nowhere.json"),
        ("SQuAD", {"seeds": (1, -1)}, "seeds.1: got -1, expected: input should be greater than or equal to 0"),
        ("tagging", {"task": "NRE"}, "task: got 'NRE', expected: input should be 'NER' or 'POS'; did you mean 'NER'?"),
        ("tagging", {"data_dir": "nowhere"}, "data_dir: no folder nowhere"),
        ("tagging", {"model": "nowhere"}, "model: nowhere does not exist; name an exported or stock"),
        ("tagging", {"max_length": 64}, "max_length: got 64, expected at most the model's 32 positions"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(
    kind: str,
    change: dict[str, Any],
    message: str,
    stock_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(FP32.read_text().replace('per_gpu": "auto"', 'per_gpu": 2'))
    command, needed = KINDS[kind]
    given = needed | {"model": str(stock_model), "data_dir": str(request.getfixturevalue(needed["data_dir"]))}
    with pytest.raises(ConfigError) as caught:
        run_queue(command, Path("out"), **given | change)
    assert message in str(caught.value)
    assert not Path("out").exists()


def test_an_output_that_is_a_file_is_refused_before_model_and_data_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = r"output: got .*out, expected a folder, but .*file is not a folder; name another"
    with pytest.raises(ConfigError, match=refused):
        run_queue(GlueOptions, tmp_path / "file" / "out", model="nowhere", data_dir="nowhere", task=("CoLA",))
