"""Makes a GPU compute the same bits whenever the same command runs on the same kind of machine.

On a CPU nothing needs to be set: with the same number of threads its operations give the same bits anyway.
"""

import os
from collections.abc import MutableMapping

import torch

from foundation.config import ConfigError, shown

REPEATABLE = {
    "CUBLAS_WORKSPACE_CONFIG": ("cuBLAS", ":4096:8", ":16:8"),
    "NCCL_ALGO": ("NCCL", "^NVLS,NVLSTree", "^NVLS", "Ring", "Tree"),
}
"""For each environment variable: its library, and the values that make it deterministic, the best first.

With NVLS the switch between the GPUs sums in its own order; NVLSTree is NVLS for several machines.
"""


def compute_deterministically(environment: MutableMapping[str, str] = os.environ) -> None:
    """Chooses deterministic algorithms in this process and those it starts; call it before anything runs on the GPU.

    From then on PyTorch raises a RuntimeError for an operation that has no deterministic form.

    Raises:
        ConfigError: the environment sets a value with which cuBLAS or NCCL is not deterministic.
    """
    for name, (library, best, *others) in REPEATABLE.items():
        if (got := environment.setdefault(name, best)) not in (best, *others):
            raise ConfigError(
                f"{name}: got {shown(got)} from the environment, expected {' or '.join((best, *others))}: with others"
                f" {library} is not deterministic; unset it"
            )
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
