"""Counts the bytes and the seconds of the torch.distributed collectives inside a `with` block."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.timing import seconds_of


class Collectives(TorchDispatchMode):
    """Counts the bytes that each rank would send if every collective were optimal, as NCCL's rings are.

    A rank sends (n - 1) / n b bytes to gather, scatter, reduce or broadcast a tensor of b bytes on n ranks, and twice
    as many to all-reduce it (Thakur et al. 2005).
    """

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self.share = (world_size - 1) / world_size
        self.bytes = 0.0
        self.seconds = 0.0
        """Total time of the collectives; each runs alone."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: tuple = (), options: Any = None) -> Any:
        namespace, _, name = function._schema.name.partition("::")
        if namespace != "c10d":
            return function(*arguments, **(options or {}))
        whole = max((sum(part.nbytes for part in _tensors(one)) for one in arguments), default=0)
        self.bytes += self.share * whole * (2 if name.startswith("allreduce") else 1)
        results: list[Any] = []
        self.seconds += seconds_of(lambda: results.append(_finished(function(*arguments, **(options or {})))))
        return results[0]


def _finished(result: Any) -> Any:
    """Waits until a collective is done; returns `result`, which is its work handle or a tuple that ends with it."""
    (result[-1] if isinstance(result, tuple) else result).wait()
    return result


def _tensors(argument: Any) -> Iterator[Tensor]:
    """Yields the tensors in an argument, which may be nested lists."""
    if isinstance(argument, Tensor):
        yield argument
    elif isinstance(argument, (list, tuple)):
        for part in argument:
            yield from _tensors(part)
