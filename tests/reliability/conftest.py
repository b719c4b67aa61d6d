"""Shares the shards and the launcher of the training tests, and undisturbed runs to compare with."""

from pathlib import Path

import pytest

from tests.pretrain.conftest import launch
from tests.pretrain.whole_runs import Launch
from tests.reliability.runs import alone, on_two_ranks

__all__ = ["launch"]


@pytest.fixture(scope="session")
def whole(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory, launch: Launch) -> Path:
    """Folder of an undisturbed run on two ranks."""
    folder = tmp_path_factory.mktemp("faults") / "whole"
    on_two_ranks(launch, shards_folder, folder).ended(0)
    return folder


@pytest.fixture(scope="session")
def whole_alone(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory, launch: Launch) -> Path:
    """Folder of an undisturbed run in one process."""
    folder = tmp_path_factory.mktemp("faults") / "whole"
    alone(launch, shards_folder, folder).ended(0)
    return folder
