"""Claims about a run's log, read by TensorBoard's own reader."""

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pretrain.runs.curves import WRITERS, Curves, Histogram, TensorBoard, curves_of
from pretrain.runs.log import FIRST_TO_GO, LEGEND, SHOWN, WIDTH, RunLog, log_line, read_metrics
from tests.pretrain.conftest import fill

VALUES = {"discriminator_loss": 0.41, "discriminator_entropy": 0.43, "tokens_per_second": 12345.0}


def new_log(folder: Path, step: int = 0, **options: Any) -> RunLog:
    return RunLog(folder, step, total_steps=100, **options)


@pytest.mark.parametrize(("kind", "ending"), [("train", " left\n"), ("held_out", "  held out\n")])
def test_every_number_of_a_record_is_written_to_file_and_tensorboard_and_the_most_important_to_the_terminal(
    kind: str, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = VALUES | {"entropy": {"p_G": 3.0, "p_S": 4.0}, "max_probability": {"p_G": [0.25, 0.75]}}
    with closing(new_log(tmp_path)) as log:
        log.write(kind, 10, values)
    assert read_metrics(tmp_path, kind) == [{"kind": kind, "step": 10, **values}]
    line = capsys.readouterr().out
    assert line.startswith("step 10/100  L_D 0.410/0.430  12.3k tok/s  ") and line.endswith(ending)
    board, curves = EventAccumulator(str(tmp_path)).Reload(), curves_of(kind, values)
    drawn = {name: event.value for name in board.Tags()["scalars"] for event in board.Scalars(name)}
    assert drawn == pytest.approx(curves.scalars) and board.Tags()["histograms"] == [*curves.histograms]


def test_a_resumed_run_discards_records_after_its_checkpoint(tmp_path: Path) -> None:
    with closing(new_log(tmp_path)) as log:
        for step in (10, 20, 30):
            log.write("train", step, VALUES)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # truncated by a kill
    assert [record["step"] for record in read_metrics(tmp_path, "train")] == [10, 20, 30]  # even before any resume
    new_log(tmp_path, step=20).close()
    assert [record["step"] for record in read_metrics(tmp_path, "train")] == [10, 20]
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


@pytest.mark.parametrize(
    "line", ["null", "5", "[1]", "{}", '{"kind": "train"}', '{"kind": "train", "step": "x"}', '{"kind": "\udcff"}']
)
def test_a_line_that_is_no_record_is_no_record_for_a_reader_or_a_resume(line: str, tmp_path: Path) -> None:
    content = f'{{"kind": "train", "step": 1}}\n{{"step": 2}}\n{line}\n'
    (tmp_path / "metrics.jsonl").write_bytes(content.encode(errors="surrogateescape"))
    assert read_metrics(tmp_path, "train") == [{"kind": "train", "step": 1}]
    new_log(tmp_path, step=2).close()
    assert read_metrics(tmp_path, "train") == [{"kind": "train", "step": 1}]


def test_an_example_is_recorded_and_shown_in_tensorboard(tmp_path: Path) -> None:
    with closing(new_log(tmp_path)) as log:
        log.write_example(20, "[CLS] [cat->dog]! [SEP]", {"log_ratio": Histogram([-1.0, 0.0, 1.0], [0.0, 5.0])})
    assert read_metrics(tmp_path, "example") == [{"kind": "example", "step": 20, "text": "[CLS] [cat->dog]! [SEP]"}]
    board = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in board.Tensors("Example/example/train/text_summary")] == [20]
    assert [event.histogram_value.num for event in board.Histograms("Ratio/log_ratio/train")] == [5]


def test_without_a_writer_there_are_only_records(tmp_path: Path) -> None:
    with closing(new_log(tmp_path, log_to=())) as log:
        log.write("train", 10, VALUES)
        log.write_example(10, "[CLS]", {})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_writer_that_fails_in_any_way_is_dropped_with_one_warning_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gone(TensorBoard):
        def __init__(self, folder: Path, step: int) -> None:
            super().__init__(folder / "elsewhere", step)

        def write(self, step: int, curves: Curves) -> None:
            raise RuntimeError("the service has ended")

    monkeypatch.setitem(WRITERS, "wandb", Gone)
    with closing(new_log(tmp_path, log_to=("wandb", "tensorboard"))) as log:
        for step in (10, 20):
            log.write("train", step, VALUES)
    warning = "WARNING: Gone failed and gets no more curves: the service has ended\n"
    assert capsys.readouterr().out.count(warning) == 1
    board = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in board.Scalars("Loss/discriminator_loss/train")] == [10, 20]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # in TensorBoard's writer
def test_records_wait_while_the_disk_is_full_and_a_warning_is_printed(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(new_log(small_disk)) as log:
        log.write("train", 1, VALUES)
        filler = fill(small_disk)
        for step in range(2, 12):
            log.write("train", step, VALUES | {"max_probability": {"p_G": [0.1] * 100}})
        assert f"WARNING: {small_disk}/metrics.jsonl: No space left on device" in capsys.readouterr().out
        filler.unlink()
        for step in range(12, 14):
            log.write("train", step, VALUES)
    assert [record["step"] for record in read_metrics(small_disk, "train")] == [*range(1, 14)]
    drawn: set[int] = set()
    for path in small_disk.glob("events.*"):
        board = EventAccumulator(str(path)).Reload()
        if board.Tags()["scalars"]:
            drawn |= {event.step for event in board.Scalars("Loss/discriminator_loss/train")}
    assert {1, 13} <= drawn


ALL = {
    "generator_loss": 2.3451,
    "sampler_loss": 0.0696,
    "discriminator_loss": 0.5667,
    "discriminator_entropy": 0.4235,
    "accuracy_masked": 0.583,
    "learning_rate": 1.9e-5,
    "gradient_norm": 1.234,
    "tokens_per_second": 12345.6,
    "skipped": 0,
    "epoch": 1.5,
    "gpu_memory_gb": 70.0,
}
SLOW = {"slowest_rank": 3, "slowest_rank_seconds": 1.21, "median_rank_seconds": 0.6}
LEFT = "23:45:07 left"


def test_a_line_has_the_most_important_values_even_in_the_longest_run() -> None:
    shown = "L_G 2.345  L_S 0.070  L_D 0.567/0.423  acc 0.583  lr 1.9e-5  grad 1.234  12.3k tok/s"
    assert log_line(999_999, 1_000_000, ALL, LEFT) == f"step 999999/1000000  {shown}  {LEFT}"


@pytest.mark.parametrize("step", [1, 2**53])
@pytest.mark.parametrize("value", [1e300, -1e300, 1e-300, float("nan"), float("inf"), -123.456, 999.9996, 0.0])
def test_no_value_makes_a_line_longer_than_120_characters(step: int, value: float) -> None:
    values = {name: value if isinstance(number, float) else step for name, number in (ALL | SLOW).items()}
    left = "9999999.9 days left"
    line = log_line(step, step, values, left)
    assert len(line) <= WIDTH == 120 and line.startswith(f"step {step}/{step}  ") and line.endswith(left)


def test_skipped_steps_and_a_slow_rank_are_shown_if_there_are_any() -> None:
    even = SLOW | {"median_rank_seconds": 1.1}
    assert not re.search("skipped|rank", log_line(1, 10, ALL | even, LEFT))
    line = log_line(1, 10, ALL | SLOW | {"skipped": 3}, LEFT)
    assert "  skipped 3  slowest rank 3 1.210/0.600 s  " in line and len(line) <= WIDTH


def test_an_accuracy_of_zero_is_shown() -> None:
    assert "  acc 0.000  " in log_line(1, 10, ALL | {"accuracy_masked": 0.0}, LEFT)
    assert "acc" not in log_line(1, 10, {"generator_loss": 2.0}, LEFT)


def test_a_line_that_would_be_too_long_omits_the_learning_rate_first() -> None:
    line = log_line(999_999, 1_000_000, ALL | {"skipped": 3}, LEFT)
    assert "lr" not in line and "L_G 2.345  L_S" in line and "skipped 3" in line
    assert sorted(FIRST_TO_GO) == sorted(SHOWN)


def test_every_name_is_explained() -> None:
    line = log_line(1, 10, ALL | {"skipped": 3}, "")
    names = {part.split()[0] for part in line.split("  ") if part and part[0].isalpha()} | {"slowest"}
    assert len(names) == 9 and all(name in LEGEND for name in names)
    assert max(map(len, LEGEND.splitlines())) <= WIDTH
