"""Claims about the progress output of long commands."""

import time

import pytest

from electra_sampler.foundation import progress


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00:00"), (59.6, "0:01:00"), (3661, "1:01:01"), (36000, "10:00:00"), (-1, "0:00:00"), (129_600, "1.5 days")],
)
def test_durations_are_hours_minutes_and_seconds_or_days(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.3, "1 second"),
        (90, "90 seconds"),
        (149, "2.5 minutes"),
        (276, "4.6 minutes"),
        (1_980, "33 minutes"),
        (40_000, "11 hours"),
    ],
)
def test_forecasts_have_one_unit_and_two_digits(seconds: float, text: str) -> None:
    assert progress.about(seconds) == f"about {text}"


def test_a_log_gets_plain_lines_with_percentage_speed_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.Progress(400_000_000, "shards") as shown:
        shown.start_t -= 50
        shown.advance(100_000_000, is_old=True)
        monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
        shown.advance(100_000_000)
    assert capsys.readouterr().err == "shards: 50%, 2.00MB/s, 01:40 left\n"


def test_a_log_gets_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.Progress(100, "shards") as shown:
        for _ in range(100):
            shown.advance(1)
    assert capsys.readouterr().err == ""


def test_a_long_wait_names_whom_it_is_for_and_a_short_one_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert progress.waited_for(lambda: "rank 3", lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        progress.waited_for(lambda: "rank 3", lambda: 1 / 0)
    assert progress.SILENCE == 10 and capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "SILENCE", 0.1)
    assert progress.waited_for(lambda: "rank 3", lambda: time.sleep(0.5)) is None
    assert capsys.readouterr().err == "waiting for rank 3\n"
