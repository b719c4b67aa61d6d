"""Claims about the pre-training command before it trains; training itself is tested in test_train.py."""

import os
import re
import shutil
from pathlib import Path

import pytest

from electra_sampler.foundation.command_line import parse_options
from electra_sampler.foundation.config import ConfigError
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import make_plan
from pretrain.run import main
from pretrain.runs.folder import read_run, write_run
from tests.pretrain.conftest import fill, options
from tests.pretrain.whole_runs import Launch, finished, run_arguments

ROOM = {"not a byte": 0, "the rank's log": 4, "half of the tokenizer": 16, "all but the record of starts": 32}
"""Free space in KiB, named after the files that fit into it."""


@pytest.mark.parametrize(
    "room", [pytest.param(room, marks=() if room == "half of the tokenizer" else pytest.mark.long) for room in ROOM]
)
def test_a_full_disk_at_the_start_ends_the_command_in_one_line(
    room: str, small_disk: Path, shards_folder: Path, launch: Launch
) -> None:
    filler, folder = fill(small_disk), small_disk / "run"
    os.truncate(filler, filler.stat().st_size - 1024 * ROOM[room])
    said = finished(launch(0, *run_arguments(shards_folder, folder)), code=2)
    errors = [line for line in said.splitlines() if "error" in line or line.startswith(("Traceback", "  File"))]
    expected = rf"run\.py: error: output: {folder} cannot be written to \(No space left on device.*\); make room"
    assert len(errors) == 1 and re.match(expected, errors[0]), said
    filler.unlink()
    again = parse_options(RunOptions, "", [str(part) for part in run_arguments(shards_folder, folder)[1:]])
    assert make_plan(again).folder == folder, "files already written prevent no later start"


def test_folders_are_mixed_by_weight_and_another_mixture_is_another_run(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(shards_folder, tmp_path / "copy")
    mixed = {"data": (shards_folder, copy), "data_weights": (3.0, 1.0)}
    assert main(options(shards_folder, tmp_path / "run", dry_run=True, **mixed)) == 0
    text = capsys.readouterr().out
    assert f"{shards_folder}: " in text and "75.0% of the samples" in text and "25.0% of the samples" in text
    plan = make_plan(options(shards_folder, tmp_path / "run", **mixed))
    assert plan.held_out is not None and plan.held_out.folders == (shards_folder / "held_out", copy / "held_out")
    write_run(tmp_path / "run", plan.description, plan.here.deepspeed.json)
    assert read_run(tmp_path / "run").data_weights == (3.0, 1.0)
    with pytest.raises(ConfigError, match=r"data_weights: .* was started with \[3\.0, 1\.0\], .* \[1\.0, 1\.0\]"):
        make_plan(options(shards_folder, tmp_path / "run", **mixed | {"data_weights": (1.0, 1.0)}))
    with pytest.raises(ConfigError, match="data_sha256"):
        make_plan(options(shards_folder, tmp_path / "run", data=(shards_folder,)))
