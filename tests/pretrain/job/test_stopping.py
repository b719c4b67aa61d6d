"""Claims about requests to stop."""

import os
import signal
import socket
from pathlib import Path

import pytest

from pretrain.job.stopping import SIGNALS, StopRequest


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_remembered_and_named_does_not_interrupt_and_has_its_usual_effect_after_the_run(
    number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with StopRequest(tmp_path) as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
    assert capsys.readouterr().out == f"rank 0 on {socket.gethostname()}: {number.name} received; saving and stopping\n"
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_second_interrupt_takes_effect_at_once(tmp_path: Path) -> None:
    with StopRequest(tmp_path):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_stop_file_counts_even_before_the_start_until_it_is_withdrawn(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "stop").touch()
    with StopRequest(tmp_path) as stop:
        assert stop
    stop.withdraw(said.append)
    assert not stop and said == [f"removed {tmp_path}/stop, so that it does not stop the next start"]
    stop.withdraw(pytest.fail)


def test_a_stop_file_that_cannot_be_looked_up_is_none(tmp_path: Path) -> None:
    folder = tmp_path / ("too long a name" * 20)
    with pytest.raises(OSError, match="File name too long"):
        (folder / "stop").stat()
    assert not StopRequest(folder)


def test_sigterm_does_not_end_a_rank_that_has_yet_to_say_why_it_fails(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OSError, match="disk full"), StopRequest(tmp_path):
        raise OSError("disk full")
    os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)
