"""The two simulated hosts and their Slurm, built once for all tests that need them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.runs import LONGER, deepspeed, training
from tests.cluster.two_hosts import Slurm, TwoHosts
from tests.finetune.conftest import cola_folder, squad_folder, stock_model
from tests.warm import outputs, two_ranks

__all__ = ["cola_folder", "squad_folder", "stock_model"]


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    hosts = TwoHosts(tmp_path_factory.mktemp("hosts"))
    yield hosts
    hosts.close()


@pytest.fixture(scope="session")
def slurm(two_hosts: TwoHosts) -> Slurm:
    return Slurm(two_hosts)


@pytest.fixture(scope="session")
def whole(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an undisturbed run of two processes on one host, without a launcher."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    outputs(two_ranks(*map(str, training(shards_folder, folder))))
    return folder


@pytest.fixture(scope="session")
def whole_longer(two_hosts: TwoHosts, shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the same run with more steps."""
    folder = tmp_path_factory.mktemp("whole_longer")
    two_hosts.run([*deepspeed("--num_gpus=2"), *training(shards_folder, folder / "run", *LONGER)], folder)
    return folder / "run"
