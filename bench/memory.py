"""Peak memory of this process."""

import resource

import torch


def peak_mb() -> float:
    """Peak GPU memory, or the process's peak memory without a GPU, in millions of bytes."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # KiB on Linux
