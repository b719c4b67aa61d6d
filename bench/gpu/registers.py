"""Compiles the Triton kernels, without needing a GPU, and prints each one's registers, memory and instructions.

    python bench/gpu/registers.py --head_sizes 64 128 --embedding_sizes 128 768 --hidden_sizes 256 768

Each line is one kernel: attention's with dropout and a learned bias, the vocabulary's with entropies, LayerNorm's with
dropout. `ptxas -v` gives registers and spills (register values moved to memory for a while). For attention's loops, the
compiled code gives instructions and exponentials, summed over all threads, per attention score; one exponential per
score is necessary. `a / b / c` are the loops over far tiles, over near tiles, and over the last tile if it has padding.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[2])

os.environ |= {"TRITON_INTERPRET": "0", "TRITON_DUMP_PTXAS_LOG": "1", "TRITON_ALWAYS_COMPILE": "1"}

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.config import StrictConfig
from electra_sampler.foundation.markdown_table import markdown_table
from pretrain.model.kernels import attention_kernels, elementwise_kernels, vocabulary_kernels
from pretrain.model.kernels.triton_attention import settings
from pretrain.model.kernels.triton_elementwise import BOTH_TILE, GELU_COLUMNS, GELU_TILE, SUM_COLUMNS, SUM_ROWS, tile_of
from pretrain.model.kernels.triton_vocabulary import ROWS
from pretrain.model.kernels.triton_vocabulary import sizes as vocabulary_settings

TYPES = {
    "lengths": "*i32",
    "seed": "*i64",
    "log_sum": "*fp32",
    "mean": "*fp32",
    "partial": "*fp32",
    "table_gradient": "*fp32",
    "factor": "fp32",
    **dict.fromkeys(("bias", "other_bias", "normalizer_R", "gradient_R", "peak_RN", "sum_RN", "spread_RN"), "*fp32"),
    **dict.fromkeys(("largest_RN", "weight_RS", "sum_TC", "inverse"), "*fp32"),
    **dict.fromkeys(("original_R", "id_R", "block_R"), "*i64"),
    "place_RN": "*i32",
    **dict.fromkeys(("least", "eps"), "fp32"),
}
"""Types of the kernel parameters that are neither sizes nor in the model's precision."""
SIZES = ("B", "L", "N", "stride", "span", "dropped", "tiles", "rows", "columns", "tokens", "chunk", "first")
LAUNCH = ("num_warps", "num_stages")
VOCABULARY = {"peaks": ROWS, "weigh": ROWS // 2, "weights_of_block": 0, "slopes": ROWS}
"""Rows per tile of each kernel over the vocabulary; 0 means one row."""


class RegisterOptions(StrictConfig):
    """The command line of `gpu/registers.py`."""

    head_sizes: tuple[int, ...] = ()
    """compile attention's kernels for heads of these sizes, in half precision"""
    embedding_sizes: tuple[int, ...] = ()
    """compile the vocabulary's kernels for embeddings of these sizes"""
    hidden_sizes: tuple[int, ...] = ()
    """compile GELU's and LayerNorm's kernels for layers of these sizes"""
    dtypes: tuple[Literal["fp32", "bf16", "fp16"], ...] = ("bf16",)
    """precisions"""
    architectures: tuple[int, ...] = (80, 90)
    """80 for A100, 90 for H100"""


def main(options: RegisterOptions) -> None:
    head = ["kernel", "precision", "size", "sm", "tile", "warps", "registers", "spilled bytes", "shared memory, KiB"]
    head += ["instructions per score", "exponentials per score"]
    print("\n".join(markdown_table(head, list(rows(options)))))


def rows(options: RegisterOptions) -> Iterator[list[str]]:
    for dtype in options.dtypes:
        for size, kernel, parameters in kernels(options, dtype):
            for architecture in options.architectures:
                tile = " x ".join(
                    str(parameters[side]) for side in ("SIDE", "ROWS", "BLOCK", "R", "C") if side in parameters
                )
                compiled = resources(kernel, dtype, parameters, architecture)
                about = (kernel.__name__, dtype, str(size), str(architecture), tile, str(parameters["num_warps"]))
                yield [*about, *compiled]


def kernels(options: RegisterOptions, dtype: str) -> Iterator[tuple[int, Any, dict[str, Any]]]:
    """Yields the size of a head, embedding or layer, a kernel, and its compile-time parameters."""
    for size in options.head_sizes if dtype != "fp32" else ():
        for local in (False, True):  # a learned bias, or a window
            given = settings(size, 26, local)
            yield size, attention_kernels.forward, given
            yield size, attention_kernels.query_backward, given | {"LEARNS_BIAS": not local}
            yield size, attention_kernels.key_backward, given
        yield size, attention_kernels.table_backward, {"S": 128, "SIDE": given["SIDE"], "num_warps": 8}
    for size in options.embedding_sizes:
        for name, tile in VOCABULARY.items():
            kernel = getattr(vocabulary_kernels, name)
            given = dict(
                vocabulary_settings(torch.empty(1, size), tile),
                EXPONENT=1.0,
                ENTROPY=True,
                WEIGHTED=True,
                num_warps=8 if tile else 4,
            )
            yield size, kernel, {key: value for key, value in given.items() if key in (*kernel.arg_names, *LAUNCH)}
    for size in options.hidden_sizes:
        yield size, elementwise_kernels.column_sums, {"R": SUM_ROWS, "C": SUM_COLUMNS, "num_warps": 4}
        yield size, elementwise_kernels.gelu_backward, tile_of(GELU_COLUMNS, GELU_TILE)
        yield size, elementwise_kernels.norm_forward, tile_of(size) | {"DROPOUT": True}
        yield size, elementwise_kernels.norm_backward, tile_of(size) | {"DROPOUT": True, "total_gradient": None}
        alone = {"DROPOUT": False, "seed": None, "residual": None, "bias": None}
        yield size, elementwise_kernels.norm_forward, tile_of(size) | alone
        yield size, elementwise_kernels.norm_backward, tile_of(size, BOTH_TILE) | {"DROPOUT": True}


def resources(kernel: Any, dtype: str, parameters: dict[str, Any], architecture: int) -> tuple[str, ...]:
    """Compiles a kernel; returns its registers per thread, the bytes it spills, its shared memory in KiB, and, for
    attention, the instructions and exponentials per score in each loop.
    """
    launch = {name: value for name, value in parameters.items() if name in LAUNCH}
    fixed = {name: value for name, value in parameters.items() if name not in launch}
    signature = {
        name: "constexpr" if name in fixed else TYPES.get(name, "i32" if name in SIZES else f"*{dtype}")
        for name in kernel.arg_names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name in ("L", "stride")
    }
    with contextlib.redirect_stdout(io.StringIO()) as log:
        source = ASTSource(kernel, signature, fixed, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=launch)
    registers = re.search(r"Used (\d+) registers", log.getvalue())
    spilled = re.search(r"(\d+) bytes spill stores", log.getvalue())
    assert registers and spilled, log.getvalue()
    loops = loops_with_exponentials(compiled.asm["cubin"]) if kernel.__module__ == attention_kernels.__name__ else []
    per_score = 32 * parameters["num_warps"] / parameters.get("SIDE", 1) ** 2
    counts = [[len(loop), sum("MUFU.EX2" in line for line in loop)] for loop in loops]
    each = [" / ".join(f"{count * per_score:.1f}" for count in kind) for kind in zip(*counts, strict=True)]
    return registers[1], spilled[1], f"{compiled.metadata.shared / 1024:g}", *(each or ("", ""))


def loops_with_exponentials(cubin: bytes) -> list[list[str]]:
    """Returns the instructions of the innermost loops that compute exponentials, in the order of the code.

    A loop ends with a jump backward, to its first instruction.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-sass", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code = {int(place, 16): line for place, line in re.findall(r"/\*([0-9a-f]{4,})\*/ +(\S.*?);", text)}
    jumps = {place: re.search(r"\bBRA\b.* `?\(?0x([0-9a-f]+)", line) for place, line in code.items()}
    loops, spans = [], [(int(jump[1], 16), place) for place, jump in jumps.items() if jump]
    for first, last in sorted(spans):
        loop = [line for place, line in code.items() if first <= place <= last]
        if any("MUFU.EX2" in line for line in loop):
            loops.append((first, last, loop))
    return [
        loop
        for first, last, loop in loops
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b, _ in loops)
    ]


if __name__ == "__main__":
    sys.exit(run_command(main, RegisterOptions, __doc__))
