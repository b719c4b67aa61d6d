"""Claims about the log of a run, read back with TensorBoard's own reader."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pretrain.run_log import RunLog, read_records

VALUES = {"discriminator_loss": 0.41, "discriminator_entropy": 0.43, "tokens_per_second": 12345.0}


def test_a_record_reaches_file_terminal_and_tensorboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = RunLog(tmp_path, step=0, total_steps=100)
    log.write("train", 10, VALUES)
    log.close()
    assert read_records(tmp_path, "train") == [{"kind": "train", "step": 10, **VALUES}]
    line = capsys.readouterr().out
    assert "step 10/100" in line and "L_D 0.4100  (entropy 0.4300)" in line and "12,345 tokens/s" in line
    assert line.rstrip().endswith("left")
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert board.Scalars("train/discriminator_loss")[0].value == pytest.approx(0.41)


def test_a_resumed_run_forgets_what_was_logged_after_its_checkpoint(tmp_path: Path) -> None:
    log = RunLog(tmp_path, step=0, total_steps=100)
    for step in (10, 20, 30):
        log.write("train", step, VALUES)
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # torn by a kill
    RunLog(tmp_path, step=20, total_steps=100).close()
    assert [record["step"] for record in read_records(tmp_path, "train")] == [10, 20]
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_a_silent_log_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = RunLog(tmp_path, step=0, total_steps=100, silent=True)
    log.write("train", 10, VALUES)
    log.say("hello")
    log.close()
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
