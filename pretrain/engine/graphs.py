"""Replays the forward and backward of a micro-batch as two CUDA graphs: two launches rather than thousands.

The forward and backward must have static shapes and never wait for the device (`tests/proofs/test_static_shapes.py`).
DeepSpeed's own work on gradients is not captured: its hooks run after the backward graph, as after any backward.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from pretrain.engine.deepspeed_config import EngineConfig

WARM_UPS = 3
"""Micro-batches before the capture, in which libraries choose kernels and allocate memory (PyTorch's number)."""


def unreplayable(config: EngineConfig, on_gpu: bool) -> Iterator[str]:
    """Yields each reason why CUDA graphs cannot replay the micro-batches of a job."""
    reasons = {
        "without a GPU": not on_gpu,
        "with ZeRO stage 3, which moves the weights": config.stage == 3,
        "with activation_checkpointing, which reads the random state on the host": config.recomputes,
    }
    yield from (reason for reason, holds in reasons.items() if holds)


class Replay(NamedTuple):
    """A captured micro-batch: functions that compute it again, and the tensors that they read and write in place."""

    forward: Callable[[], None]
    """Computes `loss`."""
    backward: Callable[[], None]
    """Computes `gradient` from `incoming`."""
    loss: Tensor
    incoming: Tensor
    """The gradient of the loss."""
    parameters: tuple[Tensor, ...]
    """Those that have a gradient."""
    gradient: Tensor
    """Their gradients, one after another in one dimension."""


class ReplayLoss(torch.autograd.Function):
    """The loss of a replay as a function of the parameters."""

    @staticmethod
    def forward(ctx: Any, replay: Replay, *parameters: Tensor) -> Tensor:
        ctx.replay = replay
        replay.forward()
        return replay.loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Returns views of one copy, which autograd keeps; the replay's own tensors it would copy one by one."""
        ctx.replay.incoming.copy_(gradient)
        ctx.replay.backward()
        return (None, *_unflatten_dense_tensors(ctx.replay.gradient.clone(), ctx.replay.parameters))


def warm_up(work: Callable[[], object], times: int) -> None:
    """Runs `work` on a stream of its own, as a capture needs."""
    current, other = torch.cuda.current_stream(), torch.cuda.Stream()
    other.wait_stream(current)
    with torch.cuda.stream(other):
        for _ in range(times):
            work()
    current.wait_stream(other)


def captured(graph: torch.cuda.CUDAGraph, pool: Any = None) -> AbstractContextManager[None]:
    """Captures what this thread launches; others pin memory and watch the communication meanwhile."""
    return torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")


def replay_micro_batches(model: nn.Module, sample: Any) -> None:
    """Makes `model.forward` replay graphs captured here, for micro-batches with the shapes of `sample`.

    A micro-batch is a named tuple of tensors on the GPU. Each replay overwrites the output of the previous one.
    Evaluation, and forwards with entropies, run without graphs.
    """
    eager = model.forward
    # odd sizes last, so that the others' gradients start at 16 bytes and are summed in the same order as eager ones
    parameters = dict(sorted(model.named_parameters(), key=lambda named: named[1].numel() % 8 != 0))
    # leaves with the same memory: the parameters' own belong to the stream on which DeepSpeed gave them hooks
    leaves = {name: parameter.detach().requires_grad_() for name, parameter in parameters.items()}
    inputs = sample._make(part.clone() for part in sample)

    def gradients(loss: Tensor, incoming: Tensor | None = None) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(loss, tuple(leaves.values()), incoming, allow_unused=True)

    # without ties: a shared module has two names, and swapped under both, it would keep the leaves
    warm_up(lambda: gradients(functional_call(model, leaves, (inputs,), tie_weights=False).loss), WARM_UPS)
    forward, backward, pool = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    with captured(forward, pool):
        output = functional_call(model, leaves, (inputs,), tie_weights=False)
    incoming = torch.ones_like(output.loss)
    with captured(backward, pool):
        found = gradients(output.loss, incoming)
        gradient = _flatten_dense_tensors([each for each in found if each is not None])
    used = tuple(own for own, its_gradient in zip(parameters.values(), found, strict=True) if its_gradient is not None)
    output = output._replace(loss=output.loss.detach())  # its graph would keep the parameters on the capture's stream
    replay = Replay(forward.replay, backward.replay, output.loss, incoming, used, gradient)

    def forward_or_replay(batch: Any, entropies: bool = False) -> Any:
        if entropies or not model.training:
            return eager(batch, entropies=entropies)
        for static, part in zip(inputs, batch, strict=True):
            static.copy_(part)
        return output._replace(loss=ReplayLoss.apply(replay, *used))

    model.forward = forward_or_replay
