"""Claims about what a dry run says; that it writes nothing is claimed in test_build_shards.py."""

import re
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.build_shards import main
from data_prep.manifest import load_manifest
from foundation.config import ConfigError


def dry_run(options, output, *inputs, **changes):
    return main(options.model_copy(update={"input": inputs, "output": output, "dry_run": True, **changes}))


def test_disk_and_chunks_are_about_those_of_the_build(options, built, tmp_path, capsys):
    assert dry_run(options, tmp_path / "out", *options.input) == 0
    printed = capsys.readouterr().out
    shards = load_manifest(built).shards
    said = float(re.search(r"about ([\d.]+) MB of shards", printed)[1]) * 1e6
    assert said == pytest.approx(sum(sum(shard.sizes.values()) for shard in shards), rel=0.3)
    assert abs(int(re.search(r"about (\d+) chunks", printed)[1]) - (shards[-1].last_chunk + 1)) <= 3


def test_a_dataset_on_the_hub_is_checked_and_told_by_the_gigabyte(options, tmp_path, capsys, monkeypatch):
    """A local folder stands for the hub: `datasets` takes either."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    table = pyarrow.table({"text": ["Kalo mi ne ru. " * 20] * 500})
    parquet.write_table(table, tmp_path / "corpus" / "train.parquet")
    assert dry_run(options, tmp_path / "out", Path("hub:corpus")) == 0
    printed = capsys.readouterr().out
    assert "hub:corpus: its size is not known before it is streamed; 1,000 MB of text take about" in printed
    assert "files" not in printed
    assert dry_run(options, tmp_path / "out", *options.input, Path("hub:corpus")) == 0
    assert "8 files, 0.1 MB on disk" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no column of text named body"):
        dry_run(options, tmp_path / "out", Path("hub:corpus"), text_column="body")
    assert not (tmp_path / "out").exists()
