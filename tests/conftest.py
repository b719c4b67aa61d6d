"""Fixtures every room shares."""

import os
import socket
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real text, GLUE and SQuAD files; tests that need it say so and skip where it is absent."""
    folder = Path(os.environ.get("ELECTRA_SAMPLER_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; set ELECTRA_SAMPLER_DATA to its folder")
    return folder


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
