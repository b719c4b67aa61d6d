"""Claims about a run's log, read by TensorBoard's own reader."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pretrain.training.curves import Histogram
from pretrain.training.run_log import RunLog, read_records
from tests.pretrain.conftest import fill

VALUES = {"discriminator_loss": 0.41, "discriminator_entropy": 0.43, "tokens_per_second": 12345.0}


def test_a_record_is_written_to_file_terminal_and_tensorboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog(tmp_path, step=0, total_steps=100)
    log.write("train", 10, VALUES)
    log.close()
    assert read_records(tmp_path, "train") == [{"kind": "train", "step": 10, **VALUES}]
    line = capsys.readouterr().out
    assert line.startswith("step 10/100  L_D 0.410/0.430  12.3k tok/s  ") and line.endswith(" left\n")
    board = EventAccumulator(str(tmp_path))
    board.Reload()
    assert board.Scalars("Loss/discriminator_loss/train")[0].value == pytest.approx(0.41)


def test_a_resumed_run_discards_records_after_its_checkpoint(tmp_path: Path) -> None:
    log = RunLog(tmp_path, step=0, total_steps=100)
    for step in (10, 20, 30):
        log.write("train", step, VALUES)
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # truncated by a kill
    assert [record["step"] for record in read_records(tmp_path, "train")] == [10, 20, 30]  # even before any resume
    RunLog(tmp_path, step=20, total_steps=100).close()
    assert [record["step"] for record in read_records(tmp_path, "train")] == [10, 20]
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_nested_values_are_nested_in_the_file(tmp_path: Path) -> None:
    values = {"entropy": {"p_G": 3.0, "p_S": 4.0}, "max_probability": {"p_G": [0.25, 0.75]}, "skipped": 0}
    log = RunLog(tmp_path, step=0, total_steps=100)
    log.write("held_out", 10, values)
    log.close()
    assert read_records(tmp_path, "held_out") == [{"kind": "held_out", "step": 10, **values}]


def test_an_example_is_recorded_and_shown_in_tensorboard(tmp_path: Path) -> None:
    log = RunLog(tmp_path, step=0, total_steps=100)
    log.write_example(20, "[CLS] [cat->dog]! [SEP]", {"log_ratio": Histogram([-1.0, 0.0, 1.0], [0.0, 5.0])})
    log.close()
    assert read_records(tmp_path, "example") == [{"kind": "example", "step": 20, "text": "[CLS] [cat->dog]! [SEP]"}]
    board = EventAccumulator(str(tmp_path))
    board.Reload()
    assert [event.step for event in board.Tensors("Example/example/train/text_summary")] == [20]
    assert [event.histogram_value.num for event in board.Histograms("Ratio/log_ratio/train")] == [5]


def test_without_a_writer_there_are_only_records(tmp_path: Path) -> None:
    log = RunLog(tmp_path, step=0, total_steps=100, log_to=())
    log.write("train", 10, VALUES)
    log.write_example(10, "[CLS]", {})
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # in TensorBoard's writer
def test_records_wait_while_the_disk_is_full_and_a_warning_is_printed(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog(small_disk, step=0, total_steps=100)
    log.write("train", 1, VALUES)
    filler = fill(small_disk)
    for step in range(2, 12):
        log.write("train", step, VALUES | {"max_probability": {"p_G": [0.1] * 100}})
    assert f"WARNING: {small_disk}/metrics.jsonl: No space left on device" in capsys.readouterr().out
    filler.unlink()
    for step in range(12, 14):
        log.write("train", step, VALUES)
    log.close()
    assert [record["step"] for record in read_records(small_disk, "train")] == [*range(1, 14)]
    drawn: set[int] = set()
    for path in small_disk.glob("events.*"):
        board = EventAccumulator(str(path))
        board.Reload()
        if board.Tags()["scalars"]:
            drawn |= {event.step for event in board.Scalars("Loss/discriminator_loss/train")}
    assert {1, 13} <= drawn
