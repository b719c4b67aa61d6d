"""Checkpoints whose tensors all depend on the step, and what may happen to their files."""

from pathlib import Path

import torch

from pretrain.engine.checkpoint import MARKER, EngineState, marker_of


def state_of(step: int, size: int = 5) -> EngineState:
    tensors = {"a.weight": torch.full((size,), float(step)), "b.bias": torch.full((2, 3), -float(step))}
    moments = {key: {name: tensor + 0.5 for name, tensor in tensors.items()} for key in ("exp_avg", "exp_avg_sq")}
    return EngineState(step, {"cur_scale": 2.0**step, "cur_iter": step}, tensors, moments)


def same(one: EngineState, other: EngineState) -> bool:
    def flat(state: EngineState) -> dict[str, torch.Tensor]:
        named = {"weights": state.weights, **state.moments}
        return {f"{kind}/{name}": tensor for kind, part in named.items() for name, tensor in part.items()}

    left, right = flat(one), flat(other)
    numbers_agree = (one.adam_steps, one.loss_scale) == (other.adam_steps, other.loss_scale)
    return numbers_agree and left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def sign(checkpoint: Path) -> None:
    """Rewrites the marker for the current sizes and checksums of the files."""
    (checkpoint / MARKER).write_bytes(marker_of(checkpoint))


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
