"""Claims about pools of workers."""

import os
import signal
from concurrent.futures import BrokenExecutor

import pytest

from data_prep.config import ConfigError
from data_prep.workers import start_pool


def add(item, constant):
    return item + constant


def process_id(item):
    return os.getpid()


def refuse(item):
    raise ConfigError("first problem", "second problem")


def die(item):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_is_done_once(workers):
    with start_pool(workers) as pool:
        assert sorted(pool.run(add, range(20), 100)) == list(range(100, 120))


def test_one_worker_is_this_process_and_two_are_others():
    with start_pool(1) as pool:
        assert set(pool.run(process_id, range(3))) == {os.getpid()}
    with start_pool(2) as pool:
        assert os.getpid() not in set(pool.run(process_id, range(3)))


def test_items_are_taken_only_as_workers_need_them():
    taken = []

    def items():
        for number in range(50):
            taken.append(number)
            yield number

    with start_pool(2) as pool:
        results = pool.run(add, items(), 0)
        next(results)
        assert len(taken) <= 2 * pool.size + 1


def test_a_users_mistake_found_by_a_worker_arrives_whole():
    with start_pool(2) as pool, pytest.raises(ConfigError, match="first problem"):
        list(pool.run(refuse, range(3)))


def test_a_killed_worker_is_an_error_and_not_a_hang():
    with pytest.raises(BrokenExecutor), start_pool(2) as pool:
        list(pool.run(die, range(3)))
