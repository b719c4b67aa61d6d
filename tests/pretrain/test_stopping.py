"""Claims about requests to stop."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrain.stopping import SIGNALS, StopRequest


@pytest.fixture(autouse=True)
def restore_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_remembered_and_does_not_interrupt(number: signal.Signals, tmp_path: Path) -> None:
    stop = StopRequest(tmp_path)
    assert not stop
    os.kill(os.getpid(), number)
    assert stop


def test_a_second_interrupt_acts_at_once(tmp_path: Path) -> None:
    StopRequest(tmp_path)
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_stop_file_asks_once_and_one_from_before_the_start_does_not(tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    stop = StopRequest(tmp_path)
    assert not stop
    (tmp_path / "stop").touch()
    assert stop
