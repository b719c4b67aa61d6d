"""Claims about a dry run; what it finds on other hosts is claimed in tests/cluster/test_dry_run.py."""

import json
import shutil
from pathlib import Path

import pytest

from data_prep.config import ConfigError
from pretrain.run import RunOptions, main


def options(shards: Path, **changes: object) -> RunOptions:
    return RunOptions.from_values({"data": (shards,), "dry_run": True, **changes})


def test_the_paper_s_run_is_planned_on_a_machine_without_a_gpu(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(shards_folder, output=tmp_path / "run")) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"size", "memory", "time", "disk", "launch"} <= lines.keys()
    assert "days on 1 V100 in fp16" in lines["time"]
    assert not (tmp_path / "run").exists()


def test_a_disk_that_cannot_hold_the_checkpoints_is_a_problem(shards_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"output: checkpoints need .* GiB are free at"):
        main(options(shards_folder, preset="tiny", output=tmp_path / "run", set=("keep_checkpoints=1000000000",)))


def test_the_disk_holds_the_newest_checkpoints_one_more_and_those_kept_for_good(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def needed(*overrides: str) -> float:
        main(options(shards_folder, preset="small", output=tmp_path / "run", set=overrides))
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("disk "))
        return float(line.split()[1])

    plain = needed("optim.steps=40000", "checkpoint_every=5000", "keep_checkpoints=3")
    kept = needed("optim.steps=40000", "checkpoint_every=5000", "keep_checkpoints=3", "keep_every=10000")
    assert kept == pytest.approx(2 * plain, abs=0.2)  # 4 more than 3 + 1


def test_a_vocabulary_that_is_not_the_shards_own_is_a_problem(shards_folder: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shutil.copytree(shards_folder, shards)
    path = shards / "tokenizer" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="tokenizer is not what these shards were made with"):
        main(options(shards, preset="tiny", output=tmp_path / "run"))


def test_a_missing_hostfile_is_named(shards_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hostfile: cannot read .*16v10"):
        main(options(shards_folder, preset="tiny", output=tmp_path / "run", hostfile=tmp_path / "16v10"))
