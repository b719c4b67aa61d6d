"""Examples, and what they are known by: the same fingerprint is the same examples, from wherever they were read."""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple


def sha256_of(parts: Iterable[object]) -> str:
    """SHA-256 over each part as Python writes it."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr(part).encode())
    return digest.hexdigest()


def answers_folder(tests: Iterable[object]) -> str:
    """Name of the folder, in a run's own, of its answers to these test examples: others have another."""
    return f"test-{sha256_of(tests)[:10]}"


class Example(NamedTuple):
    """One or two texts and what to predict: a class number, or a score divided by `Task.max_score`."""

    texts: tuple[str, ...]
    target: float
