"""Claims about traffic between ranks: no shipped configuration sends more than its ZeRO stage needs."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench.traffic import CONFIGS, bytes_sent, least_traffic
from tests.conftest import REPOSITORY, free_port

VOCABULARY = 200
SMALL_THINGS = 0.02
"""Share of norms, flags and padding in the traffic of a model with half a million parameters."""


def traffic(*arguments: str) -> dict[str, tuple[float, float]]:
    """Bytes asked for and bytes sent by configuration, relative to the minimum."""
    deepspeed = Path(sys.executable).with_name("deepspeed")
    command = (str(deepspeed), "--num_gpus=2", f"--master_port={free_port()}", "bench/traffic.py", *arguments)
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    lines = re.findall(r"^(\S+) .* asked .*\((\S+)\) .* sent .*\((\S+)\)$", finished.stdout, re.MULTILINE)
    return {name: (float(asked), float(sent)) for name, asked, sent in lines}


def test_the_minimum_is_two_passes_over_the_weights_plus_one_per_further_reducing_micro_batch() -> None:
    weights = 1000 * 2 * 7 / 8
    assert [least_traffic(stage, 1000, element=2, world_size=8) for stage in range(4)] == [2 * weights] * 4
    assert [least_traffic(stage, 1000, element=2, world_size=8, micro_batches=3) for stage in range(4)] == [
        2 * weights,
        2 * weights,
        4 * weights,
        4 * weights,
    ]
    assert least_traffic(1, 1000, element=2, world_size=1) == 0


def test_bytes_written_are_counted_once_before_and_after_they_arrive() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        before = bytes_sent()
        sender.sendall(bytes(50_000))
        assert bytes_sent() - before == 50_000
        with receiver:
            assert len(receiver.recv(50_000, socket.MSG_WAITALL)) == 50_000
            assert bytes_sent() - before == 50_000


@pytest.mark.long
def test_no_zero_stage_sends_more_than_it_needs() -> None:
    sent = {  # see bench/traffic.py
        "zero0_fp32.json": 1.0,
        "zero1_fp32.json": 1.5,
        "zero1_bf16.json,deepspeed.zero_optimization.stage=2": 1.25,
        "zero3_bf16.json": 1.5,
    }
    measured = traffic("--vocabulary", str(VOCABULARY), "--config", *sent)
    assert measured.keys() == sent.keys()
    for name, (asked_ratio, sent_ratio) in measured.items():
        assert asked_ratio == pytest.approx(1, abs=SMALL_THINGS), name
        assert sent_ratio == pytest.approx(sent[name], abs=0.05), name


@pytest.mark.long
def test_accumulation_sends_no_more_than_it_needs() -> None:
    measured = traffic("--vocabulary", str(VOCABULARY), "--micro_batches", "3", "--config", *CONFIGS[:4])
    assert len(measured) == 4
    assert [asked for asked, _ in measured.values()] == pytest.approx([1] * 4, abs=SMALL_THINGS)
