"""Claims about the export command; its output is tested in huggingface/test_export.py."""

from pathlib import Path

import pytest

from foundation.config import ConfigError
from pretrain.export import ExportOptions, main


def test_an_export_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"out: got {tmp_path}/file/out, expected a folder, but {tmp_path}/file is"):
        main(ExportOptions(run=tmp_path / "run", out=tmp_path / "file" / "out"))


def test_an_export_never_overwrites_files(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        main(ExportOptions(run=tmp_path / "run", out=tmp_path / "out"))
