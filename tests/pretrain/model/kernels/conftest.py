"""A memory checker for Triton's kernels in all tests of this folder, as compute-sanitizer's on a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch import Tensor

from tests.conftest import REPOSITORY


@pytest.fixture(autouse=True)
def within_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an interpreted kernel fail that reads or writes outside of the tensors it was given."""
    if find_spec("triton") is None or os.environ["TRITON_INTERPRET"] == "0":
        return
    from triton.runtime import interpreter

    launch, builder = interpreter.GridExecutor.__call__, interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    first_T, end_T = np.empty(0, np.uint64), np.empty(0, np.uint64)

    def launched(kernel: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal first_T, end_T
        given = {each for each in (*arguments, *options.values()) if isinstance(each, Tensor) and each.numel()}
        ranges = ((each.data_ptr(), extent(each)) for each in given)
        first_T, end_T = np.array(sorted((first, first + size) for first, size in ranges), np.uint64).reshape(-1, 2).T
        end_T = np.maximum.accumulate(end_T)  # one may hold others
        return launch(kernel, *arguments, **options)

    def check(pointers: Any, mask: Any) -> None:
        address_X, size = pointers.data[mask.data], pointers.get_element_ty().primitive_bitwidth // 8
        tensor_X = np.searchsorted(first_T, address_X, side="right") - 1
        inside_X = (tensor_X >= 0) & (address_X + np.uint64(size) <= end_T[tensor_X.clip(0)])
        assert inside_X.all(), f"{(~inside_X).sum()} addresses outside of the kernel's tensors"

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return load(self, pointers, mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched)
    monkeypatch.setattr(builder, "create_masked_load", checked_load)
    monkeypatch.setattr(builder, "create_masked_store", checked_store)


def extent(tensor: Tensor) -> int:
    """Bytes from a tensor's first value to its last."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in strides)) * tensor.element_size()


def compiled(*options: object) -> list[list[str]]:
    """Returns the rows that `bench/gpu/registers.py` prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "bench/gpu/registers.py", *map(str, options)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]


class Given(NamedTuple):
    """A sampling head's scores."""

    hidden_XE: Tensor
    bias_V: Tensor | None
    table_VE: Tensor

    def all(self) -> Tensor:
        scores_XV = self.hidden_XE @ self.table_VE.detach().T
        return scores_XV if self.bias_V is None else scores_XV + self.bias_V
