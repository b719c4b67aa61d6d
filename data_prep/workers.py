"""Runs tasks in this process, in several processes of this machine, or on the ranks of an mpirun."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

from electra_sampler.foundation.command_line import print_warning

_RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # set by Open MPI's mpirun; by MPICH's and Intel's

Item = TypeVar("Item")


class Pool:
    """Runs functions over items on `size` workers: MPI's ranks, else processes; a single worker is this process."""

    def __init__(self, size: int, ranks: Any = None) -> None:
        self.size = size
        self._executor = ranks

    def start(self, tasks: int) -> None:
        """Starts the workers, at most `tasks`; they import their modules while this process prepares."""
        self.size = max(1, min(self.size, tasks))
        if self._executor is not None or self.size == 1:
            return
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by the workers, until `_begin`
        try:
            # spawned, not forked: the tokenizer's threads do not survive a fork
            self._executor = ProcessPoolExecutor(self.size, get_context("spawn"), _begin, (before is signal.SIG_IGN,))
        except (ImportError, OSError):
            print_warning("workers: this system has no semaphores (/dev/shm) for several processes; using one")
            self.size = 1
        else:
            self._executor.map(abs, range(self.size))  # the first tasks start the processes
        finally:
            signal.signal(signal.SIGINT, before)

    def end(self) -> None:
        """Ends the workers after their current tasks; drops waiting tasks."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def run(self, function: Callable[..., Any], items: Iterable[Item], *constants: Any) -> Iterator[tuple[Item, Any]]:
        """Yields (item, `function(item, *constants)`) for each item as it completes, in any order."""
        self.start(self.size)
        if self._executor is None:
            for item in items:
                yield item, function(item, *constants)
            return
        waiting = {self._executor.submit(function, item, *constants): item for item in items}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


@contextmanager
def start_pool(workers: int) -> Iterator[Pool | None]:
    """Yields a pool: MPI's ranks under mpirun, else `workers` processes.

    On the ranks that are workers, it yields None, once the pool is closed.
    """
    if max(int(os.environ.get(name, 1)) for name in _RANKS) > 1:
        from mpi4py import MPI
        from mpi4py.futures import MPICommExecutor

        with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
            yield None if executor is None else Pool(MPI.COMM_WORLD.Get_size() - 1, executor)
        return
    pool = Pool(workers)
    try:
        yield pool
    except KeyboardInterrupt:  # which ends workers: one that held the lock of their tasks leaves the others waiting
        for worker in active_children():
            worker.kill()
        raise
    finally:
        pool.end()


def _begin(ignores_interrupts: bool) -> None:
    """Makes this worker end when its parent is killed; else it would wait forever, or write into a resumed build.

    Ctrl-C ends it without a word, unless it is ignored: its parent says that it was interrupted.
    """
    if not ignores_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def watch() -> None:
        if parent := parent_process():
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()
