"""Claims about the options of a run."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from foundation.command_line import parse_options
from foundation.config import ConfigError
from pretrain.training.options import RunOptions
from tests.conftest import REPOSITORY


def test_options_are_known_without_slow_imports() -> None:
    code = "import sys; import pretrain.training.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


def test_a_missing_package_for_curves_is_refused_with_its_installation() -> None:
    if find_spec("wandb"):
        pytest.skip("wandb is installed")
    with pytest.raises(ConfigError, match=r"log_to: got wandb, .* pip install 'electra-sampler\[wandb\]'$"):
        parse_options(RunOptions, "", ["--log_to", "tensorboard", "wandb"])
