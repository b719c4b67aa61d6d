"""Claims about the log of a run, read back with TensorBoard's own reader."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pretrain.training.distributions import Bins, Histogram
from pretrain.training.run_log import RunLog, flat, read_records
from tests.pretrain.conftest import fill

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


def test_a_line_shows_norm_position_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"gradient_norm": 1.234, "epoch": 2.5, "epoch_of_folder": [2.5, 0.1], "gpu_memory_gb": 13.37}
    RunLog(tmp_path, step=0, total_steps=100).write("train", 10, values)
    line = capsys.readouterr().out
    assert "grad 1.23" in line and "epoch 2.5 " in line and "GPU 13.4 GB" in line


def test_a_resumed_run_forgets_what_was_logged_after_its_checkpoint(tmp_path: Path) -> None:
    log = RunLog(tmp_path, step=0, total_steps=100)
    for step in (10, 20, 30):
        log.write("train", step, VALUES)
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # torn by a kill
    assert [record["step"] for record in read_records(tmp_path, "train")] == [10, 20, 30]  # before any resume too
    RunLog(tmp_path, step=20, total_steps=100).close()
    assert [record["step"] for record in read_records(tmp_path, "train")] == [10, 20]
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_nested_values_are_nested_in_the_file_and_paths_on_the_board(tmp_path: Path) -> None:
    values = {"entropy": {"p_G": 3.0, "p_S": 4.0}, "max_probability": {"p_G": [0.25, 0.75]}, "skipped": 0}
    log = RunLog(tmp_path, step=0, total_steps=100)
    log.write("held_out", 10, values)
    log.close()
    assert read_records(tmp_path, "held_out") == [{"kind": "held_out", "step": 10, **values}]
    paths = ["entropy/p_G", "entropy/p_S", "max_probability/p_G/0", "max_probability/p_G/1", "skipped"]
    assert dict(flat(values)) == dict(zip(paths, (3.0, 4.0, 0.25, 0.75, 0), strict=True))
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert board.Tags()["scalars"] == [f"held_out/{path}" for path in paths]


def test_a_histogram_reaches_the_board_as_it_was_counted(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=1000).clip(-1.99, 1.99)
    counts, edges = np.histogram(values, bins=40, range=(-2, 2))
    log = RunLog(tmp_path, step=0, total_steps=100)
    log.write_histograms("train", 7, {"logit": Histogram(Bins(-2.0, 2.0, 40), torch.from_numpy(counts).double())})
    log.close()
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    (event,) = board.Histograms("train/logit")
    seen = event.histogram_value
    assert event.step == 7 and seen.num == 1000
    assert dict(zip(np.round(seen.bucket_limit, 6), seen.bucket, strict=True)) == dict(
        zip(np.round(edges[1:], 6), counts, strict=True)
    )
    assert seen.min == pytest.approx(values.min(), abs=0.1) and seen.max == pytest.approx(values.max(), abs=0.1)
    assert seen.sum == pytest.approx(values.sum(), abs=50)  # half a bin each
    assert seen.sum_squares == pytest.approx((values**2).sum(), rel=0.01)


def test_an_example_is_a_record_and_stands_on_the_board_as_it_is(tmp_path: Path) -> None:
    text = "[CLS] [cat->dog]! * _ # " + "unable " * 40 + "[SEP]"
    log = RunLog(tmp_path, step=0, total_steps=100)
    log.write_example(20, text)
    log.close()
    assert read_records(tmp_path, "example") == [{"kind": "example", "step": 20, "text": text}]
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    (event,) = board.Tensors("train/example/text_summary")
    first, *lines, last = event.tensor_proto.string_val[0].decode().split("\n")
    assert first == last == "```"
    assert max(map(len, lines)) <= 100 and " ".join(lines) == text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's writer
def test_while_the_disk_is_full_records_wait_and_the_run_is_told(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog(small_disk, step=0, total_steps=100)
    log.write("train", 1, VALUES)
    filler = fill(small_disk)
    for step in range(2, 12):
        log.write("train", step, VALUES | {"max_probability": [0.1] * 100})
    assert f"WARNING: {small_disk}/metrics.jsonl: No space left on device" in capsys.readouterr().out
    filler.unlink()
    for step in range(12, 14):
        log.write("train", step, VALUES)
    log.close()
    assert [record["step"] for record in read_records(small_disk, "train")] == [*range(1, 14)]
    drawn: set[int] = set()
    for path in (small_disk / "tensorboard").iterdir():
        board = EventAccumulator(str(path))
        board.Reload()
        if board.Tags()["scalars"]:
            drawn |= {event.step for event in board.Scalars("train/discriminator_loss")}
    assert {1, 13} <= drawn
