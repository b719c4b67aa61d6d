"""Claims about the messages of ranks at their store, and about strangers who write to it."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from pretrain.job.meeting import Meeting, RankState
from pretrain.job.processes import World, attempt

KEY = b"of the ranks alone"
STATE = RankState("rank 1 on node2", "step 7", "train.py line 3")
FAILURE = f"watchdog/{attempt()}/failure"
RANK_1 = f"watchdog/{attempt()}/1"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[TCPStore]:
    """A job's store, as seen by a stranger who found its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        server = TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=os.dup(listening.fileno())
        )
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    yield TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)


def meeting(rank: int, key: bytes = KEY) -> Meeting:
    return Meeting(World(rank, 2, rank, torch.device("cpu")), key)


def test_ranks_learn_each_others_progress_and_failures(store: TCPStore) -> None:
    first, second = meeting(0), meeting(1)
    second.hold(STATE)
    first.hold(STATE)
    assert first.known[1] == STATE and first.failure is None
    second.tell("no room", 1)
    second.tell("a second reason", 2)
    first.hold(STATE)
    assert first.failure == ("no room", 1)


FORGED: dict[str, Callable[[TCPStore], Any]] = {
    "a failure": lambda store: store.set(FAILURE, json.dumps(["\x1b[31mbad usage", 2])),
    "a failure and a signature": lambda store: store.set(FAILURE, "0" * 64 + json.dumps(["bad usage", 2])),
    "no text": lambda store: store.set(FAILURE, b"\xff\xfe" * 64),  # not text
    "nothing": lambda store: store.set(FAILURE, ""),
    "a rank's word in another place": lambda store: store.set(FAILURE, store.get(RANK_1).decode()),
    "a state": lambda store: store.set(RANK_1, json.dumps([99, "rank 1", "\x1b[31m", "nowhere"])),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_strangers_writes_are_ignored_and_reported_once_and_ranks_still_hear_each_other(
    what: str, store: TCPStore, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = meeting(0), meeting(1)
    second.hold(STATE)
    FORGED[what](store)
    for _ in range(2):
        first.hold(STATE)
    assert first.failure is None and first.known[1].name in ("rank 1", STATE.name)
    said = capsys.readouterr().err
    assert said.count("somebody else writes to this job's store at 127.0.0.1:") == 1
    assert "bad usage" not in said and said.strip().isprintable()
    second.hold(STATE)
    second.tell("no room", 1)
    first.hold(STATE)
    assert first.known[1] == STATE and first.failure == ("no room", 1)


def test_messages_of_an_earlier_start_or_an_earlier_step_are_ignored(store: TCPStore) -> None:
    earlier = meeting(1, b"of another start")
    earlier.hold(STATE)
    earlier.tell("bad usage", 2)
    first, second = meeting(0), meeting(1)
    first.hold(STATE)
    assert first.failure is None and first.known[1] != STATE
    second.hold(STATE)
    old = store.get(RANK_1)
    second.hold(STATE._replace(where="step 8"))
    first.hold(STATE)
    store.set(RANK_1, old.decode())
    first.hold(STATE)
    assert first.known[1].where == "step 8"


def test_a_failures_message_is_logged_without_control_characters(store: TCPStore) -> None:
    first, second = meeting(0), meeting(1)
    second.tell("no file \x1b[31mred\r here:\nit is gone" + "x" * 100_000, 1)
    first.hold(STATE)
    assert first.failure is not None
    reason, _ = first.failure
    assert reason.startswith("no file \\x1b[31mred\\r here:\nit is gone") and len(reason) < 20_010
