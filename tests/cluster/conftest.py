"""The two hosts and their Slurm, built once for all tests that need them."""

from collections.abc import Iterator

import pytest

from tests.cluster.hosts import COMMANDS, SLURM_COMMANDS, Slurm, TwoHosts, missing
from tests.pretrain.conftest import launch, shards_folder

__all__ = ["launch", "shards_folder"]


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    if reason := missing(COMMANDS):
        pytest.skip(reason)
    hosts = TwoHosts(tmp_path_factory.mktemp("hosts"))
    yield hosts
    hosts.close()


@pytest.fixture(scope="session")
def slurm(two_hosts: TwoHosts) -> Slurm:
    if reason := missing(SLURM_COMMANDS):
        pytest.skip(reason)
    return Slurm(two_hosts)
