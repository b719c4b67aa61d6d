"""Compiles the Triton kernels for GPUs that need not be there, and prints registers and spills as `ptxas -v` does.

    python bench/gpu_registers.py --head_sizes 64 128 --dtypes bf16

Each line is one kernel with dropout and a learned bias. A spill is a register's value kept in memory for a while.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

os.environ |= {"TRITON_INTERPRET": "0", "TRITON_DUMP_PTXAS_LOG": "1", "TRITON_ALWAYS_COMPILE": "1"}

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bench.matrix_rate import DTYPES
from foundation.command_line import run_command
from foundation.config import StrictConfig
from foundation.markdown_table import markdown_table
from pretrain.model import attention_kernels
from pretrain.model.triton_attention import settings

TYPES = {
    "lengths": "*i32",
    "seed": "*i64",
    "log_sum": "*fp32",
    "mean": "*fp32",
    "partial": "*fp32",
    "table_gradient": "*fp32",
    "factor": "fp32",
}
"""Types of the parameters other than those of the model's precision, and sizes."""
SIZES = ("B", "L", "N", "reach", "half", "dropped", "tiles")


class RegisterOptions(StrictConfig):
    """The command line of `gpu_registers.py`."""

    head_sizes: tuple[int, ...] = (64, 128)
    """sizes of a head"""
    dtypes: tuple[Literal["fp32", "bf16", "fp16"], ...] = ("bf16",)
    """precisions"""
    architectures: tuple[int, ...] = (80, 90)
    """80 for A100, 90 for H100"""


def main(options: RegisterOptions) -> None:
    head = ["kernel", "precision", "D", "sm", "tile", "warps", "registers", "spilled bytes", "shared memory, KiB"]
    print("\n".join(markdown_table(head, list(rows(options)))))


def rows(options: RegisterOptions) -> Iterator[list[str]]:
    for dtype in options.dtypes:
        for size in options.head_sizes:
            for name, parameters in settings(DTYPES[dtype], size, dropped=6554).items():
                for architecture in options.architectures:
                    tile = " x ".join(str(parameters[side]) for side in "MK" if side in parameters)
                    fixed = parameters | ({"LEARNS_BIAS": True} if name == "query_backward" else {})
                    compiled = resources(getattr(attention_kernels, name), dtype, fixed, architecture)
                    yield [name, dtype, str(size), str(architecture), tile, str(parameters["num_warps"]), *compiled]


def resources(kernel: Any, dtype: str, parameters: dict[str, Any], architecture: int) -> tuple[str, str, str]:
    """Compiles a kernel; returns its registers per thread, the bytes it spills and its shared memory."""
    launch = {name: value for name, value in parameters.items() if name.startswith("num_")}
    fixed = {name: value for name, value in parameters.items() if name not in launch}
    signature = {
        name: "constexpr" if name in fixed else TYPES.get(name, "i32" if name in SIZES else f"*{dtype}")
        for name in kernel.arg_names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name in ("L", "half")
    }
    with contextlib.redirect_stdout(io.StringIO()) as log:
        source = ASTSource(kernel, signature, fixed, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=launch)
    registers = re.search(r"Used (\d+) registers", log.getvalue())
    spilled = re.search(r"(\d+) bytes spill stores", log.getvalue())
    assert registers and spilled, log.getvalue()
    return registers[1], spilled[1], f"{compiled.metadata.shared / 1024:.0f}"


if __name__ == "__main__":
    sys.exit(run_command(main, RegisterOptions, __doc__))
