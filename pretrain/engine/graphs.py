"""Replays the forward and backward of a micro-batch as two CUDA graphs: two launches rather than thousands.

The forward and backward must have static shapes and never wait for the device (`tests/proofs/test_static_shapes.py`).
The backward ends by writing all gradients into flat tensors, in the layout in which the back end sums them over the
ranks and updates the weights; that is not captured, nor any other communication.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from pretrain.engine.deepspeed_config import EngineConfig
from pretrain.engine.engine import Engine

WARM_UPS = 3
"""Micro-batches before the capture, in which libraries choose kernels and allocate memory (PyTorch's number)."""


def unreplayable(config: EngineConfig, on_gpu: bool) -> Iterator[str]:
    """Yields each reason why CUDA graphs cannot replay the micro-batches of a job."""
    reasons = {
        "without a GPU": not on_gpu,
        "with ZeRO stage 2, which reduces gradients during the backward; use stage 1": config.stage == 2,
        "with ZeRO stage 3, which moves the weights": config.stage == 3,
        "with overlap_comm, which reduces gradients during the backward": config.overlaps,
        "with offload_optimizer, which moves each gradient to the host": config.offloads,
        "with activation_checkpointing, which reads the random state on the host": config.recomputes,
    }
    yield from (reason for reason, holds in reasons.items() if holds)


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


def replay_micro_batches(engine: Engine, sample: Any, observe: Callable[[Any, Any, bool], None]) -> None:
    """Makes the engine's forward replay graphs captured here, for micro-batches with the shapes of `sample`.

    A micro-batch is a named tuple of tensors on the GPU. Each replay overwrites the output of the previous one. A step
    that reports replays graphs of its own, which compute entropies as well; they share the memory of the others.
    `observe` is part of each forward, and called here too: with the micro-batch, its output, and whether that has
    entropies. Evaluation runs without graphs.
    """
    model, backend = engine.module, engine.backend
    eager = model.forward
    flats, places = backend.flat_gradients()
    store = torch._foreach_add_ if engine.config.accumulation_steps > 1 else torch._foreach_copy_
    parameters = dict(model.named_parameters())
    # leaves with the same memory: the parameters' own belong to the stream on which DeepSpeed gave them hooks
    leaves = {name: parameter.detach().requires_grad_() for name, parameter in parameters.items()}
    inputs, pool = sample._make(part.clone() for part in sample), torch.cuda.graph_pool_handle()

    def forward(entropies: bool) -> Any:
        # without ties: a shared module has two names, and swapped under both, it would keep the leaves
        output = functional_call(model, leaves, (inputs,), {"entropies": entropies}, tie_weights=False)
        observe(inputs, output, entropies)
        return output

    def gradients(loss: Tensor, incoming: Tensor) -> dict[Tensor, Tensor]:
        found = torch.autograd.grad(loss, tuple(leaves.values()), incoming, allow_unused=True)
        return {own: each for own, each in zip(parameters.values(), found, strict=True) if each is not None}

    def capture(entropies: bool) -> tuple[Callable[[], None], Callable[[Tensor], None], Any]:
        """Returns functions that compute forward and backward again, and the output, which they overwrite."""
        warm_up(lambda: gradients((loss := forward(entropies).loss), torch.ones_like(loss)), WARM_UPS)
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with captured(first, pool):
            output = forward(entropies)
        incoming = torch.ones_like(output.loss)
        with captured(second, pool):
            found = gradients(output.loss, incoming)
            store([places[own] for own in found], [*found.values()])

        def backward(gradient: Tensor) -> None:
            incoming.copy_(gradient)
            second.replay()

        # detached: the loss's graph would keep the parameters on the capture's stream
        return first.replay, backward, output._replace(loss=output.loss.detach())

    replays = [capture(entropies) for entropies in (False, True)]
    torch._foreach_zero_(flats)
    backend.replayed = flats, places

    def forward_or_replay(batch: Any, entropies: bool = False, **of_evaluation: Any) -> Any:
        if not model.training:
            return eager(batch, entropies=entropies, **of_evaluation)
        assert not of_evaluation, "no graph was captured with these options"
        replay_forward, replay_backward, output = replays[entropies]
        for static, part in zip(inputs, batch, strict=True):
            static.copy_(part)
        replay_forward()
        loss = output.loss.clone()
        loss.backward = replay_backward  # autograd has no part in it
        return output._replace(loss=loss)

    model.forward = forward_or_replay
