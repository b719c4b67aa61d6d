"""finetune/tasks/glue_rows.py: mistakes in rows are counted, named by line, and refused unless left out on request."""

from pathlib import Path

import pytest

from data_prep.config import ConfigError
from finetune.tasks.glue import TASKS
from finetune.tasks.glue_files import read_file
from finetune.tasks.glue_rows import Reading


def write(folder: Path, *lines: str) -> Path:
    path = folder / "train.tsv"
    path.write_text("".join(f"{line}\n" for line in ("sentence\tlabel", *lines)))
    return path


def test_malformed_rows_are_named_by_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, "fine\t1", "no label", "wrong label\t2")
    with pytest.raises(ConfigError) as caught:
        read_file(path, TASKS["SST-2"])
    assert caught.value.problems == (
        f"data_dir: {path}, line 3: 1 columns, expected 2 separated by tabs",
        f"data_dir: {path}, line 4: label '2', expected one of 0, 1",
        "data_dir: mend these rows, or leave them out with --skip_malformed",
    )


def test_many_malformed_rows_are_counted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="35 more malformed rows"):
        read_file(write(tmp_path, *["bad"] * 40), TASKS["SST-2"])


def test_malformed_rows_are_left_out_on_request_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "fine\t1", *["bad"] * 7, "good\t0")
    examples = read_file(path, TASKS["SST-2"], Reading(skip_malformed=True))
    assert [example.texts[0] for example in examples] == ["fine", "good"]
    said = capsys.readouterr().out
    assert f"{path}: 7 malformed rows left out" in said
    assert "line 3: 1 columns" in said
    assert "2 more malformed rows" in said
    with pytest.raises(ConfigError, match="no examples"):
        read_file(write(tmp_path, "bad"), TASKS["SST-2"], Reading(skip_malformed=True))
