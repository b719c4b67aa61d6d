"""finetune/run_glue.py: one launch does all runs, the next one what is left; mistakes cost one line."""

from pathlib import Path
from typing import Any

import pytest

from data_prep.config import ConfigError
from finetune.config import GlueOptions
from finetune.records import RunRecord, read_records
from finetune.run_glue import run_queue
from tests.conftest import REPOSITORY
from tests.finetune.conftest import launch

SHORT = {"epochs": 1, "batch_size": 8, "deepspeed_config": REPOSITORY / "ds_configs" / "zero0_fp32.json"}


def run_here(model: Path, data_dir: Path, output: Path, **options: Any) -> list[RunRecord]:
    """The same in this process; returns all records of the output folder."""
    given = {"model": str(model), "task": ("CoLA",), "data_dir": str(data_dir), "output": output}
    run_queue(GlueOptions.from_values(given | SHORT | options))
    return read_records(output / "results.jsonl")


def test_a_launch_runs_all_seeds_and_the_next_only_what_is_missing(
    stock_model: Path, cola_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ("--model", stock_model, "--data_dir", cola_folder, "--output", tmp_path)
    done = launch("run_glue.py", *paths, "--task", "CoLA", "--epochs", "1", "--batch_size", "8", "--seeds", "1", "2")
    assert done.returncode == 0, done.stderr
    records = read_records(tmp_path / "results.jsonl")
    assert [(record.run.seed, record.world_size) for record in records] == [(1, 2), (2, 2)]
    assert records[0].train_examples == 203

    records = run_here(stock_model, cola_folder, tmp_path, seeds=(1, 2, 3))
    assert "1 of 3 runs to do" in capsys.readouterr().out
    assert [(record.run.seed, record.world_size) for record in records] == [(1, 2), (2, 2), (3, 1)]


def test_random_weights_are_another_run_and_follow_the_seed(
    stock_model: Path, cola_folder: Path, tmp_path: Path
) -> None:
    run_here(stock_model, cola_folder, tmp_path, seeds=(1,))
    records = run_here(stock_model, cola_folder, tmp_path, seeds=(1, 2), random_weights=True)
    assert [record.run.random_weights for record in records] == [False, True, True]
    assert len({record.train_losses for record in records}) == 3


def test_the_default_deepspeed_file_is_found_from_any_folder(
    stock_model: Path, cola_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (record,) = run_here(stock_model, cola_folder, tmp_path / "out", seeds=(1,), deepspeed_config=None)
    assert record.precision == "float32"


def test_a_changed_model_is_another_run(stock_model: Path, cola_folder: Path, tmp_path: Path) -> None:
    run_here(stock_model, cola_folder, tmp_path, seeds=(1,))
    other = tmp_path / "model"
    other.mkdir()
    for file in stock_model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    assert len(run_here(other, cola_folder, tmp_path, seeds=(1,))) == 1
    (other / "notes.txt").write_text("trained longer")
    assert len(run_here(other, cola_folder, tmp_path, seeds=(1,))) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": ("COLA",)}, "task: got 'COLA', expected all or one of CoLA, SST-2"),
        ({"task": ("RTE",)}, "data_dir: no folder"),
        ({"epochs": 0}, "epochs: got 0, expected"),
        ({"max_length": 64}, "max_length: got 64, expected at most the model's 32"),
        ({"deepspeed_config": "nowhere.json"}, "deepspeed_config: cannot read nowhere.json"),
        ({"batch_size": 9, "deepspeed_config": "ds.json"}, "batch_size: got 9, expected a multiple of 2"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(
    change: dict[str, Any],
    message: str,
    stock_model: Path,
    cola_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    micro = SHORT["deepspeed_config"].read_text().replace('per_gpu": "auto"', 'per_gpu": 2')
    Path("ds.json").write_text(micro)
    with pytest.raises(ConfigError) as caught:
        run_here(stock_model, cola_folder, tmp_path / "out", **change)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_papers_grid_is_run_point_by_point_but_for_what_the_command_line_fixes(
    stock_model: Path, cola_folder: Path, tmp_path: Path
) -> None:
    records = run_here(stock_model, cola_folder, tmp_path, seeds=(1,), grid="paper", epochs=None)
    assert [record.run.settings.epochs for record in records] == [3, 4, 5]
    records = run_here(stock_model, cola_folder, tmp_path / "fixed", seeds=(1,), grid="paper", epochs=1)
    assert [record.run.settings.epochs for record in records] == [1]
