"""A double of CUDA graphs for CPUs: records the operations of a capture and computes them again into the same memory.

    deepspeed --num_gpus 2 tests/pretrain/engine/graph_double.py      compares eager steps and replays of several ranks

Streams, the memory pool and the state of the random generator are not doubled. As on a GPU, a capture that reads a
value on the host fails; so does one that communicates, which none should.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.batches import random_batch
from bench.gpu.declared import declare
from bench.gpu.setting import PLAIN
from pretrain.data.batches import Batch
from pretrain.engine import graphs
from pretrain.engine.deepspeed_config import resolve
from pretrain.engine.engine import Engine
from pretrain.engine.graphs import replay_micro_batches
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import leave, start_processes
from pretrain.method.electra import Sampler
from pretrain.model import ops
from pretrain.model.encoder import Stack
from pretrain.model.kernels import cpu_ops
from pretrain.training.metrics import MetricTotals
from tests.deepspeed_values import values_of
from tests.pretrain.conftest import SMALL_MODEL, new_model


class CUDAGraph(TorchDispatchMode):
    """Records inside the `with` block; `replay` repeats it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default or function.namespace == "c10d":
            raise RuntimeError("operation not permitted when stream is capturing")
        found = function(*arguments, **(options or {}))
        self.calls.append((function, arguments, options or {}, found))
        return found

    @torch.no_grad()
    def replay(self) -> None:
        for function, arguments, options, found in self.calls:
            if function.is_view:
                continue
            for again, static in zip(tree_leaves(function(*arguments, **options)), tree_leaves(found), strict=True):
                if isinstance(static, Tensor) and again.data_ptr() != static.data_ptr():
                    static.copy_(again)


@contextmanager
def capture(graph: CUDAGraph, **_: Any) -> Iterator[None]:
    with graph:
        yield


def install(patch: pytest.MonkeyPatch) -> None:
    """Lets `replay_micro_batches` work on a CPU, with the operations and the fixed shapes of a GPU."""
    patch.setattr(torch.cuda, "CUDAGraph", CUDAGraph)
    patch.setattr(torch.cuda, "graph", capture)
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    patch.setattr(graphs, "warm_up", lambda work, times: work())
    patch.setattr(Stack, "packs", False)
    patch.setattr(cpu_ops, "use", lambda *_: None)
    for name, form in PLAIN.items():
        patch.setattr(ops, name, form)


STEPS, SEQUENCES, LENGTH, WORDS = 4, 2, 12, 60
REPORTS, EVALUATES = 2, 1
"""The steps that report, and after which one the model is evaluated."""


def trained(name: str, objective: str, sizes: Any, micro_batches: int, graphed: bool) -> list[Tensor]:
    """Trains with dropout under a DeepSpeed file; returns losses, norms, weights and metrics."""
    torch.manual_seed(0)
    world, model = start_processes(), new_model(objective, sizes.model_copy(update={"dropout": 0.1}), WORDS)
    if objective in ("uniform", "unigram"):  # read from the run's shards, once
        model.p_V = torch.rand(WORDS).softmax(0)
    values = values_of(name) | {"train_micro_batch_size_per_gpu": SEQUENCES}
    if "fp16" in values:
        values["fp16"]["initial_scale_power"] = 10
    size = SEQUENCES * micro_batches * world.world_size
    device = "cuda" if "fp16" in values else "cpu"
    config = resolve(values, batch_size=size, world_size=world.world_size, device_type=device, clipping=1.0)
    engine: Engine = Engine(model, parameter_groups(model, 0.01), config, world)
    install(patch := pytest.MonkeyPatch())
    totals, found = MetricTotals(world.device), []
    torch.manual_seed(world.rank)
    batches = [random_batch(SEQUENCES, LENGTH, WORDS) for _ in range(STEPS * micro_batches)]
    batches = [Batch._make(map(torch.as_tensor, batch)) for batch in batches]
    if graphed:
        replay_micro_batches(engine, batches[0], totals.add)
        totals.sums.zero_()
        totals.distributions.zero_()
    for number, batch in enumerate(batches):
        step = number // micro_batches
        torch.manual_seed(number)
        output = engine.forward(batch, entropies=step == REPORTS)
        if not graphed:
            totals.add(batch, output, step == REPORTS)
        found.append(output.loss.detach().clone())
        engine.backward(output.loss)
        if (number + 1) % micro_batches == 0:
            found.append(torch.as_tensor(engine.update(1e-2).gradient_norm))
            if step == EVALUATES:
                model.eval()
                found.append(engine.forward(batches[0], entropies=True).loss.detach())
                if isinstance(model, Sampler):
                    found.append(engine.forward(batches[0], from_p_G=True).loss.detach())
                model.train()
    patch.undo()
    weights = [parameter.detach() for parameter in engine.module.parameters()]
    return [*found, *weights, totals.sums, totals.distributions]


SHARED = (("zero0_fp32", 1), ("zero1_fp32", 2), ("zero1_bf16", 1), ("zero1_fp16", 2))
"""DeepSpeed files and micro-batches with which several ranks train."""


def main() -> None:
    declare()
    for name, micro_batches in SHARED:
        eager, replayed = (trained(name, "hp_loss", SMALL_MODEL, micro_batches, graphed) for graphed in (False, True))
        same = all(torch.equal(*pair) for pair in zip(eager, replayed, strict=True))
        print(f"{name}, {micro_batches} micro-batches: {'equal' if same else 'DIFFERENT'}", flush=True)
    leave(0)


if __name__ == "__main__":
    main()
