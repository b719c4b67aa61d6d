"""Checkpoints whose tensors all depend on the step, and the marker of one whose files were changed."""

from pathlib import Path

import torch

from pretrain.engine.checkpoint import MARKER, EngineState, marker_of


def state_of(step: int, size: int = 5) -> EngineState:
    tensors = {"a.weight": torch.full((size,), float(step)), "b.bias": torch.full((2, 3), -float(step))}
    moments = {key: {name: tensor + 0.5 for name, tensor in tensors.items()} for key in ("exp_avg", "exp_avg_sq")}
    return EngineState(step, {"cur_scale": 2.0**step, "cur_iter": step}, tensors, moments)


def sign(checkpoint: Path) -> None:
    """Rewrites the marker for the current sizes and checksums of the files."""
    (checkpoint / MARKER).write_bytes(marker_of(checkpoint))
