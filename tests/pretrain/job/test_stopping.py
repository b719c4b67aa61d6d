"""Claims about requests to stop."""

import os
import signal
import socket
from pathlib import Path

import pytest

from pretrain.job.stopping import SIGNALS, StopRequest


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_remembered_and_named_and_does_not_interrupt(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StopRequest(tmp_path) as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
    assert capsys.readouterr().out == f"rank 0 on {socket.gethostname()}: {number.name} received; saving and stopping\n"


def test_a_second_interrupt_acts_at_once(tmp_path: Path) -> None:
    with StopRequest(tmp_path):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_stop_file_asks_from_before_the_start_on_until_it_is_withdrawn(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "stop").touch()
    with StopRequest(tmp_path) as stop:
        assert stop
    stop.withdraw(said.append)
    assert not stop and said == [f"removed {tmp_path}/stop, so that the next start can run"]
    stop.withdraw(pytest.fail)


def test_a_stop_file_that_cannot_be_removed_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "stop").mkdir()
    StopRequest(tmp_path).withdraw(said.append)
    assert len(said) == 1 and said[0].startswith(f"WARNING: {tmp_path}/stop cannot be removed (")


def test_signals_act_as_before_once_the_run_is_over(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with StopRequest(tmp_path):
        os.kill(os.getpid(), signal.SIGINT)
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
