"""Claims about the log line: it is always short, and its names are explained."""

import re

import pytest

from pretrain.training.log_line import FIRST_TO_GO, LEGEND, SHOWN, WIDTH, log_line

VALUES = {
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
    assert log_line(999_999, 1_000_000, VALUES, LEFT) == f"step 999999/1000000  {shown}  {LEFT}"


@pytest.mark.parametrize("step", [1, 2**53])
@pytest.mark.parametrize("value", [1e300, -1e300, 1e-300, float("nan"), float("inf"), -123.456, 999.9996, 0.0])
def test_no_value_makes_a_line_longer_than_120_characters(step: int, value: float) -> None:
    values = {name: value if isinstance(number, float) else step for name, number in (VALUES | SLOW).items()}
    left = "9999999.9 days left"
    line = log_line(step, step, values, left)
    assert len(line) <= WIDTH == 120 and line.startswith(f"step {step}/{step}  ") and line.endswith(left)


def test_skipped_steps_and_a_slow_rank_are_shown_if_there_are_any() -> None:
    even = SLOW | {"median_rank_seconds": 1.1}
    assert not re.search("skipped|rank", log_line(1, 10, VALUES | even, LEFT))
    line = log_line(1, 10, VALUES | SLOW | {"skipped": 3}, LEFT)
    assert "  skipped 3  slowest rank 3 1.210/0.600 s  " in line and len(line) <= WIDTH


def test_a_line_that_would_be_too_long_omits_the_learning_rate_first() -> None:
    line = log_line(999_999, 1_000_000, VALUES | {"skipped": 3}, LEFT)
    assert "lr" not in line and "L_G 2.345  L_S" in line and "skipped 3" in line
    assert sorted(FIRST_TO_GO) == sorted(SHOWN)


def test_every_name_is_explained() -> None:
    line = log_line(1, 10, VALUES | {"skipped": 3}, "")
    names = {part.split()[0] for part in line.split("  ") if part and part[0].isalpha()} | {"slowest"}
    assert len(names) == 9 and all(name in LEGEND for name in names)
    assert max(map(len, LEGEND.splitlines())) <= WIDTH
