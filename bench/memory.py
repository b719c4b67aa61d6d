"""The most memory that this process has taken."""

import resource

import torch


def peak_mb() -> float:
    """Of the GPU's memory, or of the process's where there is no GPU, in millions of bytes."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # Linux counts it in KiB
