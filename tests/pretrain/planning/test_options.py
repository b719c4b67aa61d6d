"""Claims about the options of a run."""

from importlib.util import find_spec

import pytest

from electra_sampler.foundation.command_line import parse_options
from electra_sampler.foundation.config import ConfigError
from pretrain.planning.options import RunOptions


def test_a_missing_package_for_curves_is_refused_with_its_installation() -> None:
    if find_spec("wandb"):
        pytest.skip("wandb is installed")
    with pytest.raises(ConfigError, match=r"log_to: got wandb, .* pip install 'electra-sampler\[wandb\]'$"):
        parse_options(RunOptions, "", ["--log_to", "tensorboard", "wandb"])
