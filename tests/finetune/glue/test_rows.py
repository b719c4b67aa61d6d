"""finetune/glue/rows.py: a few malformed rows are left out and counted, a wrong file is refused."""

from pathlib import Path

import pytest

from finetune.glue.files import read_file
from finetune.glue.tasks import TASKS
from foundation.config import ConfigError


def write(folder: Path, *lines: str) -> Path:
    path = folder / "train.tsv"
    path.write_text("".join(f"{line}\n" for line in ("sentence\tlabel", *lines)))
    return path


def test_a_file_with_more_malformed_rows_than_an_official_one_is_refused_and_they_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "fine\t1", "no label", "wrong label\t2")
    left_out: dict[str, int] = {}
    with pytest.raises(ConfigError) as caught:
        read_file(path, TASKS["SST-2"], left_out)
    assert caught.value.problems == (
        f"data_dir: {path}, line 3: 1 columns, expected 2 separated by tabs",
        f"data_dir: {path}, line 4: label '2', expected one of 0, 1",
        f"data_dir: {path}: 2 of 3 rows are malformed, expected at most 1 in 1,000;"
        " mend them, or give the task's own file",
    )
    assert not left_out


def test_many_malformed_rows_are_counted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="35 more malformed rows"):
        read_file(write(tmp_path, *["bad"] * 40), TASKS["SST-2"], {})


def test_a_few_malformed_rows_are_left_out_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "fine\t1", *["bad"] * 7, *["good\t0"] * 6_992)
    left_out: dict[str, int] = {}
    examples = read_file(path, TASKS["SST-2"], left_out)
    assert [example.texts[0] for example in examples] == ["fine"] + ["good"] * 6_992
    assert left_out == {str(path): 7}
    said = capsys.readouterr().out
    assert f"{path}: 7 malformed rows left out" in said
    assert "line 3: 1 columns" in said
    assert "2 more malformed rows" in said
    with pytest.raises(ConfigError, match="7 of 6999 rows are malformed"):
        read_file(write(tmp_path, "fine\t1", *["bad"] * 7, *["good\t0"] * 6_991), TASKS["SST-2"], {})
