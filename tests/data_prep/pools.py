"""A pool of workers, for tests outside of mpirun; apart, because the workers import it."""

from collections.abc import Iterator
from contextlib import contextmanager

from data_prep.workers import Pool, start_pool


@contextmanager
def pool_of(workers: int) -> Iterator[Pool]:
    with start_pool(workers) as pool:
        assert pool is not None
        yield pool
