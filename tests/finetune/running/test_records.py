"""finetune/running/records.py: a finished run is never lost, repeated or corrupted."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.config import SquadConfig
from finetune.presets import settings_for
from finetune.running.records import (
    RunRecord,
    answers_folder,
    append_record,
    read_records,
    sha256_of,
    write_files,
)
from tests.finetune.conftest import make_record, squad_record


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    records = [
        make_record(seed=1),
        make_record(seed=2, train_losses=(0.5, None), collapsed="non-finite loss"),
        make_record(task="SQuAD 2.0", settings=settings_for(SquadConfig, "SQuAD 2.0", 256, 512, {})),
    ]
    for record in records:
        append_record(path, record)
    assert read_records(path) == records


def test_a_missing_file_has_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path / "results.jsonl") == []


def test_a_truncated_line_loses_only_its_own_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    append_record(path, make_record(seed=1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    append_record(path, make_record(seed=2))
    assert [record.run.seed for record in read_records(path)] == [1, 2]
    assert "results.jsonl, line 2: incomplete" in capsys.readouterr().out


def test_a_line_that_is_not_a_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"task": "CoLA"}\n')
    with pytest.raises(ConfigError, match=r"results\.jsonl, line 1: .*task: unknown key"):
        read_records(path)


@pytest.mark.parametrize("line", ["3", "null", "[]", '[["run", 1]]'])
def test_a_line_that_is_not_an_object_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append_record(path, make_record())
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_records(path)
    assert caught.value.problems == (
        f"{path}, line 2: got {json.loads(line)!r}, expected the JSON object of a run; remove the line",
    )


@pytest.mark.parametrize("make", [make_record, squad_record])
def test_a_wrong_setting_is_one_line_of_the_class_of_its_task(make: Callable[..., RunRecord], tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    values = make(0.5).model_dump(mode="json")
    values["run"]["settings"]["learning_rate"] = "high"
    path.write_text(json.dumps(values) + "\n")
    with pytest.raises(ConfigError) as caught:
        read_records(path)
    (line,) = caught.value.problems
    assert "learning_rate: got 'high', expected: input should be a valid number" in line


def test_each_run_has_its_own_folder_name() -> None:
    names = {
        make_record(**change).run.folder_name()
        for change in ({}, {"seed": 2}, {"epochs": 4}, {"data_sha256": "x"}, {"random_weights": True})
    }
    assert len(names) == 5
    assert make_record(task="SQuAD 2.0").run.folder_name().startswith("SQuAD-2.0-seed1-")


def test_saved_files_are_json_in_ascii(tmp_path: Path) -> None:
    write_files(tmp_path / "new" / "folder", {"a.json": {"q": "é"}})
    assert json.loads((tmp_path / "new" / "folder" / "a.json").read_text()) == {"q": "é"}
    write_files(tmp_path / "new", {"part/b.txt": "plain"})
    assert (tmp_path / "new" / "part" / "b.txt").read_text() == "plain"
    write_files(tmp_path / "none", {})
    assert not (tmp_path / "none").exists()


def test_the_fingerprint_depends_on_the_content_and_order_of_all_parts() -> None:
    assert sha256_of(["a", 1]) == sha256_of(iter(["a", 1]))
    assert len({sha256_of(parts) for parts in ([], ["a", 1], [1, "a"], ["a", "1"], ["a", 1, None])}) == 5


def test_other_test_examples_have_another_folder() -> None:
    assert answers_folder(["a"]) == answers_folder(["a"]) != answers_folder(["b"])
    assert answers_folder(["a"]).startswith("test-")
