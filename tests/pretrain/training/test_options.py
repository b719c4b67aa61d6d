"""Claims about the options of a run."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from foundation.command_line import parse_options
from foundation.config import ConfigError
from pretrain.method.objectives import OBJECTIVES
from pretrain.training.options import RunOptions
from tests.conftest import REPOSITORY


def test_the_options_are_known_without_what_takes_long_to_import() -> None:
    code = "import sys; import pretrain.training.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


def test_the_objectives_are_those_of_the_registry() -> None:
    for name in OBJECTIVES:
        assert parse_options(RunOptions, "", ["--objective", name]).objective == name
    with pytest.raises(ConfigError, match=r"objective: got 'other', expected: .*'hp_loss', 'hp_dist', 'electra' or"):
        parse_options(RunOptions, "", ["--objective", "other"])


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_curves_go_nowhere_without_the_package(name: str) -> None:
    if find_spec(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(ConfigError, match=rf"log_to: got {name}, .* pip install 'electra-sampler\[{name}\]'$"):
        parse_options(RunOptions, "", ["--log_to", "tensorboard", name])
