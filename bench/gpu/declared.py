"""Runs `pretrain/run.py` on a CPU that DeepSpeed takes for a GPU with fp16, so that its fp16 runs without a GPU.

    python bench/gpu/declared.py [--asynchronous] [the options of pretrain/run.py]

DeepSpeed and this project refuse fp16 on a CPU because it is slow there; its loss scale and its updates are the same.
With `--asynchronous` the device also claims streams, so that ZeRO reduces gradients as on a GPU: on a stream of its
own, from two buffers, and with a wait after the backward.
"""

import os
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed searches for one, and warns

import deepspeed
import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from electra_sampler.foundation.command_line import run_command
from pretrain.engine import deepspeed_config
from pretrain.planning.options import RunOptions
from pretrain.run import main


class CPUWithFp16(CPU_Accelerator):
    """DeepSpeed's CPU, which declares that it computes in fp16."""

    def is_fp16_supported(self) -> bool:
        return True


class Stream(torch.cpu.Stream):
    """A stream whose work has ended when the call returns."""

    def synchronize(self) -> None:
        pass


class AsynchronousCPU(CPUWithFp16):
    """A CPU that also declares streams; counts the streams made and the host's waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = self.waits = 0
        self._current = Stream()

    def is_synchronized_device(self) -> bool:
        return False

    @property
    def Stream(self) -> Any:
        self.streams += 1
        return Stream

    @property
    def Event(self) -> Any:
        return torch.cpu.Event

    def stream(self, stream: Any) -> Any:
        return torch.cpu.StreamContext(stream)

    def current_stream(self, device_index: Any = None) -> Any:
        return self._current

    default_stream = current_stream

    def synchronize(self, device_index: Any = None) -> None:
        self.waits += 1


def declare(asynchronous: bool = False) -> CPUWithFp16:
    """Lets DeepSpeed and `deepspeed_config.resolve` take fp16 on this CPU; call it before an engine starts."""
    device = AsynchronousCPU() if asynchronous else CPUWithFp16()
    deepspeed.accelerator.set_accelerator(device)
    if asynchronous:
        torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]
    refused = deepspeed_config._impossible
    deepspeed_config._impossible = lambda config, device_type: refused(config, "cuda")
    return device


if __name__ == "__main__":
    declare("--asynchronous" in sys.argv)
    sys.argv = [argument for argument in sys.argv if argument != "--asynchronous"]
    sys.exit(run_command(main, RunOptions, __doc__))
