"""The shards and the launcher of the training run's own tests, and runs without a fault to compare with."""

from pathlib import Path

import pytest

from tests.pretrain.conftest import launch, shards_folder
from tests.reliability.runs import Launch, alone, on_two_ranks

__all__ = ["launch", "shards_folder"]


@pytest.fixture(scope="session")
def whole(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory, launch: Launch) -> Path:
    """The folder of a run of two ranks without a fault."""
    folder = tmp_path_factory.mktemp("faults") / "whole"
    on_two_ranks(launch, shards_folder, folder).ended(0)
    return folder


@pytest.fixture(scope="session")
def whole_alone(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory, launch: Launch) -> Path:
    """The same of one process."""
    folder = tmp_path_factory.mktemp("faults") / "whole"
    alone(launch, shards_folder, folder).ended(0)
    return folder
