"""Claims about pools of workers."""

import errno
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from multiprocessing import active_children, get_context
from operator import add
from pathlib import Path
from typing import NoReturn

import pytest

from electra_sampler.foundation.config import ConfigError
from tests.data_prep.pools import pool_of


def process_id(item: int) -> int:
    return os.getpid()


def refuse(item: int) -> NoReturn:
    raise ConfigError("first problem", "second problem")


def die(item: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_is_processed_once(workers: int) -> None:
    with pool_of(workers) as pool:
        assert sorted(pool.run(add, range(20), 100)) == [(number, number + 100) for number in range(20)]


def test_one_worker_is_this_process_and_two_are_new_ones() -> None:
    for workers, is_here in ((1, True), (2, False)):
        with pool_of(workers) as pool:
            assert (os.getpid() in {process for _, process in pool.run(process_id, range(3))}) == is_here


def test_there_are_no_more_workers_than_tasks_and_none_but_this_process_for_one() -> None:
    before = {*active_children()}
    with pool_of(8) as pool:
        pool.start(2)
        assert len({*active_children()} - before) == 2
    with pool_of(8) as pool:
        pool.start(1)
        assert {process for _, process in pool.run(process_id, range(3))} == {os.getpid()}
        assert {*active_children()} <= before


def test_without_semaphores_one_process_does_the_work_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where /dev/shm is missing; the system's own error is raised in place of its lock."""

    def no_lock(self: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(type(get_context("spawn")), "Lock", no_lock)
    with pool_of(2) as pool:
        assert {process for _, process in pool.run(process_id, range(3))} == {os.getpid()}
    assert "no semaphores (/dev/shm)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("work", "error", "said"), [(refuse, ConfigError, "first problem; second problem"), (die, BrokenExecutor, None)]
)
def test_a_user_error_in_a_worker_arrives_unchanged_and_a_killed_worker_is_an_error_and_not_a_hang(
    work: Callable[[int], None], error: type[Exception], said: str | None
) -> None:
    with pytest.raises(error, match=said), pool_of(2) as pool:
        list(pool.run(work, range(3)))


def hand_over_ids(output: Path) -> None:
    with pool_of(2) as pool:
        for process in pool.run(wait_for_ever, range(2), output):
            print(process)


def wait_for_ever(item: int, output: Path) -> None:
    (output / f"{os.getpid()}").touch()
    time.sleep(600)


def is_running(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.is_file() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="needs /proc")
def test_no_worker_outlives_a_killed_build(tmp_path: Path) -> None:
    parent = get_context("spawn").Process(target=hand_over_ids, args=(tmp_path,))
    parent.start()
    while len(list(tmp_path.iterdir())) < 2:
        time.sleep(0.01)
    parent.kill()
    parent.join()
    workers = [int(path.name) for path in tmp_path.iterdir()]
    deadline = time.monotonic() + 30
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def interrupt_six_times() -> None:
    for _ in range(6):
        with suppress(KeyboardInterrupt), pool_of(2) as pool:
            list(pool.run(abs, range(4)))
            time.sleep(0.2)  # both wait for a task by now, one for the other's lock
            os.kill(active_children()[0].pid or 0, signal.SIGINT)
            raise KeyboardInterrupt


def test_ctrl_c_ends_a_worker_that_waits_for_another_which_it_ended_first() -> None:
    """Without that, three of eight interrupted pools waited for ever."""
    interrupted = get_context("spawn").Process(target=interrupt_six_times)
    interrupted.start()
    interrupted.join(60)
    code = interrupted.exitcode
    interrupted.kill()
    assert code == 0
