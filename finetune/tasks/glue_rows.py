"""Rows of a file or of the hub -> examples; malformed ones are counted and named."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple, TypeVar

from data_prep.config import ConfigError

PROBLEMS_SHOWN = 5
"""Malformed rows named in full; the rest is counted."""

NumberedRow = tuple[int, Mapping[str, Any] | str]
"""Line (or row) of a file, and the row by column name, or what is wrong with it."""
Made = TypeVar("Made")


class Reading(NamedTuple):
    """How examples are read."""

    skip_malformed: bool = False
    """Leave malformed rows out, and say so, instead of refusing them."""
    tests: bool = False
    """Read the test sets too."""


PLAIN = Reading()


def parse(
    source: object,
    rows: Iterable[NumberedRow],
    make: Callable[[Mapping[str, Any], int], Made],
    reading: Reading,
    places: Iterator[int] | None = None,
) -> list[Made]:
    """`make(row, place)` of every row of `source`; malformed ones are refused, or left out, all the same named.

    A malformed row has a place too. `places` counts on from one source to the next; without it the first row has 0.

    Raises:
        ConfigError: malformed rows, or not one that is whole.
    """
    made: list[Made] = []
    problems = []
    for (number, row), place in zip(rows, places or count(), strict=False):
        try:
            if isinstance(row, str):
                raise ValueError(row)
            made.append(make(row, place))
        except ValueError as error:
            problems.append(f"data_dir: {source}, line {number}: {error}")
    left = len(problems) - PROBLEMS_SHOWN
    named = problems[:PROBLEMS_SHOWN] + ([f"data_dir: {source}: {left} more malformed rows"] if left > 0 else [])
    if problems and not reading.skip_malformed:
        raise ConfigError(*named, "data_dir: mend these rows, or leave them out with --skip_malformed")
    if not made:
        raise ConfigError(*named, f"data_dir: {source}: no examples")
    if problems and os.environ.get("RANK", "0") == "0":
        print(f"{source}: {len(problems)} malformed rows left out:", *named, sep="\n  ", flush=True)
    return made
