"""Counts, without a GPU, what the host asks of one in a training step of one process.

    python bench/gpu/host_calls.py [--preset base --seq_length 512 --batch_size 32]

A call is an operation of PyTorch, views not counted, or the launch of a Triton kernel. Forward and backward are counted
on the meta device, whose tensors have no values; without Triton, attention counts as the operations of its formula.
The rest of a step, which is the same for all, is counted on a CPU under DeepSpeed in bf16, with the norm of a GPU.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock, patch

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

os.environ["TRITON_INTERPRET"] = "0"

import torch
from pydantic import Field
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import JITFunction

from bench.batches import random_batch
from bench.engine import LEARNING_RATE, engine_step, operations
from bench.gpu.setting import Plainly
from bench.models import CONFIGS, fresh_model, new_engine
from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.config import StrictConfig
from electra_sampler.foundation.markdown_table import markdown_table
from pretrain.config import RunConfig
from pretrain.data.batches import Batch
from pretrain.engine import deepspeed_patches, graphs
from pretrain.engine.plain import squared_norm
from pretrain.job.processes import start_processes
from pretrain.model.kernels import cuda_ops
from pretrain.presets import preset
from pretrain.training.metrics import MetricTotals

META = torch.device("meta")
CAPABILITIES = {"PyTorch": (7, 0), "Triton": (8, 0)}
"""Compute capabilities by the operations that they run."""
COLUMNS = ("forward and backward", "Triton kernels", "allocations", "draws of seeds", "rest", "sum")


class CallOptions(StrictConfig):
    """The command line of `gpu/host_calls.py`."""

    preset: Literal["small", "base"] = "small"
    """model sizes"""
    seq_length: int = Field(default=128, ge=8)
    """word pieces per sequence"""
    batch_size: int = Field(default=128, ge=1)
    """sequences per step"""


class Calls(TorchDispatchMode):
    """Counts calls inside the `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.kernels = 0
        JITFunction.run = self.launch

    def launch(self, *_: object, **__: object) -> None:
        self.kernels += 1

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.operations[function.overloadpacket.__name__] += not function.is_view
        return function(*arguments, **(options or {}))

    def row(self, name: str, rest: int) -> list[str]:
        whole = self.operations.total() + self.kernels
        allocations = sum(count for each, count in self.operations.items() if "empty" in each)
        counts = (whole, self.kernels, allocations, self.operations["randint"], rest, whole + rest)
        return [name, *(f"{count:,}" for count in counts)]


def main(options: CallOptions) -> None:
    run, batch = preset(options.preset), random_batch(options.batch_size, options.seq_length).to(META)
    rest = calls_of_update(run)
    eager = (forward_and_backward(run, batch, each).row(name, rest) for name, each in CAPABILITIES.items())
    print("\n".join(markdown_table(["operations", *COLUMNS], [*eager, *replays(run)])))


def forward_and_backward(run: RunConfig, batch: Batch, capability: tuple[int, int]) -> Calls:
    """Counts eager calls, with the operations that a GPU of this compute capability runs."""
    model = fresh_model(run).to(META, torch.bfloat16)
    for matrices in (True, False):  # side by side, as under ZeRO
        own = [parameter for parameter in model.parameters() if (parameter.dim() > 1) == matrices]
        parts = torch.cat([each.detach().flatten() for each in own]).split([*map(Tensor.numel, own)])
        for parameter, part in zip(own, parts, strict=True):
            parameter.data = part.view_as(parameter)
    with Plainly():
        cuda_ops.use(capability)
        with Calls() as calls:
            model(batch).loss.backward()
    return calls


def replays(run: RunConfig) -> Iterator[list[str]]:
    """Counts calls when forward and backward are graphs, which are captured as nothing, and in a step that reports."""
    engine = new_engine(fresh_model(run), run, CONFIGS / "zero1_bf16.json", 1, start_processes())
    batch = random_batch(1, 16).to(engine.device, counts=True)
    with (
        Plainly(),
        patch.multiple(graphs, captured=lambda *_: nullcontext(), warm_up=lambda work, times: None),
        patch.multiple(torch.cuda, CUDAGraph=Mock, graph_pool_handle=Mock()),
    ):
        graphs.replay_micro_batches(engine, batch, MetricTotals(engine.device).add)
        engine_step(engine, batch)  # the first update makes buffers
        for name, entropies in (("Triton, CUDA graphs", False), ("the same, in a report", True)):
            with Calls() as calls:
                engine.backward(engine.forward(batch, entropies=entropies).loss)
            with Calls() as update:
                engine.update(LEARNING_RATE)
            calls.operations["replay"] = 2
            yield calls.row(name, update.operations.total())


def calls_of_update(run: RunConfig) -> int:
    """Counts the calls of a step that are neither forward nor backward, with a GPU's norm of the gradients."""
    engine = new_engine(fresh_model(run), run, CONFIGS / "zero1_bf16.json", 1, start_processes())
    batch, stand_in, one = random_batch(1, 16), torch.empty(1, device=META), torch.ones(())

    def norm_on_a_gpu(gradients: Sequence[Tensor]) -> Tensor:
        squared_norm([stand_in] * len(gradients))
        return one

    setattr(deepspeed_patches, squared_norm.__name__, norm_on_a_gpu)
    with Plainly():
        engine_step(engine, batch)  # the first update makes buffers
        return operations(partial(engine_step, engine, batch)) - operations(
            lambda: engine.module(batch).loss.backward()
        )


if __name__ == "__main__":
    sys.exit(run_command(main, CallOptions, __doc__))
