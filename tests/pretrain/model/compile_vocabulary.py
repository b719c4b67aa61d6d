"""Compiles the vocabulary's kernels for a GPU that need not be there: prints a line of JSON for each, with its shared
memory, registers and spilled bytes.

    TRITON_INTERPRET=0 python -m tests.pretrain.model.compile_vocabulary CAPABILITY EMBEDDING_SIZE
"""

import json
import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from pretrain.model import vocabulary_kernels as kernels
from pretrain.model.triton_vocabulary import ROWS, sizes

IDS = ("original_R", "id_R", "block_R")
COUNTS = ("rows", "tokens", "chunk", "first")
PTX = 87
"""PTX version that the `ptxas` of Triton 3.6 to 3.9 reads."""


def compile_all(capability: int, embedding_size: int) -> None:
    example = torch.empty(1, embedding_size)
    for kernel, rows in (
        (kernels.peaks, ROWS),
        (kernels.weigh, ROWS // 2),
        (kernels.weights_of_block, 0),
        (kernels.slopes, ROWS),
    ):
        constants = {**sizes(example, rows), "EXPONENT": 1.0, "ENTROPY": True, "WEIGHED": True, "WIDE": False}
        types = {name: type_of(name, constants) for name in kernel.arg_names}
        values = {(place,): constants[name] for place, name in enumerate(types) if types[name] == "constexpr"}
        aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(types) if types[name][0] == "*"}
        options = {"num_warps": 8 if rows else 4, "num_stages": 3, "ptx_version": PTX}
        made = compile(
            ASTSource(kernel, types, values, aligned), target=GPUTarget("cuda", capability, 32), options=options
        )
        found = {"kernel": kernel.__name__, "shared": made.metadata.shared, **assembled(made.asm["ptx"], capability)}
        print(json.dumps(found), flush=True)


def type_of(name: str, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    if name in COUNTS:
        return "i32"
    if name == "least":
        return "fp32"
    return "*" + ("i64" if name in IDS else "i32" if name == "place_RN" else "bf16" if name in HALF else "fp32")


HALF = ("hidden", "other", "table", "slope_RC")


def assembled(ptx: str, capability: int) -> dict[str, int]:
    """Returns registers and spilled bytes, from `ptxas -v`."""
    architecture = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert architecture is not None
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [knobs.nvidia.ptxas.path, "-v", f"-arch={architecture[1]}", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    numbers = {"registers": r"Used (\d+) registers", "spilled": r"(\d+) bytes spill stores"}
    return {name: int(re.findall(pattern, said)[-1]) for name, pattern in numbers.items()}


if __name__ == "__main__":
    compile_all(int(sys.argv[1]), int(sys.argv[2]))
