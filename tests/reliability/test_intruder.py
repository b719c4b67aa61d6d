"""Claims about a job whose store a stranger has reached: its losses are those of an undisturbed job."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import free_port
from tests.pretrain.training.test_train import run_arguments, wait_for_step
from tests.reliability.runs import SCHEDULE, Heard, Launch, assert_nothing_was_lost

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
INTRUDER = """
import json, sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
for _ in range(20):
    for name in [name for name in store.list_keys() if "watchdog" in name] + ["watchdog/attempt-0/failure"]:
        store.set(name, json.dumps(["\\x1b[31mbad usage", 2]))
        store.delete_key("watchdog/attempt-0/1")
print("written")
"""


def test_a_job_that_a_stranger_writes_to_loses_nothing(
    whole: Path, shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    folder, port = tmp_path / "run", free_port()
    deepspeed = [Path(sys.executable).with_name("deepspeed"), "--num_gpus=2", f"--master_port={port}"]
    run = Heard(launch(0, "-c", PASS_ON, *deepspeed, *run_arguments(shards_folder, folder, *SCHEDULE)))
    wait_for_step(folder, 20)
    for other in own_addresses():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port), timeout=5)
    intruder = subprocess.run([sys.executable, "-c", INTRUDER, str(port)], capture_output=True, text=True, check=True)
    assert intruder.stdout == "written\n"
    output = run.ended(0)
    assert "WARNING: somebody else writes to this job's store" in output
    texts = [output, *(log.read_text() for log in (folder / "logs").iterdir())]
    assert not any("bad usage" in text or "\x1b" in text for text in texts)
    assert_nothing_was_lost(folder, whole)


PASS_ON = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"


def own_addresses() -> set[str]:
    """Addresses of this machine other than the one where the ranks meet."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    return {address for address in found if ":" not in address} | {"127.0.0.2"}
