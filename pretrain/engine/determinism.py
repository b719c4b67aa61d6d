"""Makes a GPU compute the same bits whenever the same command runs on the same kind of machine.

On a CPU nothing needs to be set: with the same number of threads its operations give the same bits anyway.
"""

import os
from collections.abc import MutableMapping

import torch

from foundation.config import ConfigError, shown

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACES = (":4096:8", ":16:8")
"""Values of `CUBLAS_WORKSPACE_CONFIG` with which cuBLAS gives the same bits; the first one is faster."""


def compute_deterministically(environment: MutableMapping[str, str] = os.environ) -> None:
    """Chooses deterministic algorithms in this process and those it starts; call it before anything runs on the GPU.

    From then on PyTorch raises a RuntimeError for an operation that has no deterministic form.

    Raises:
        ConfigError: the environment sets a workspace with which cuBLAS is not deterministic.
    """
    if (got := environment.setdefault(WORKSPACE, WORKSPACES[0])) not in WORKSPACES:
        raise ConfigError(
            f"{WORKSPACE}: got {shown(got)} from the environment, expected {' or '.join(WORKSPACES)}: with others"
            " cuBLAS is not deterministic; unset it"
        )
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
