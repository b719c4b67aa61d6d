"""Peak memory of this process."""

import resource

import torch


def peak_mb() -> float:
    """Returns peak GPU memory, or without a GPU the process's peak memory, in millions of bytes."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # KiB on Linux
