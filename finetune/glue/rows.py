"""Rows of a file or of the hub -> examples; the few malformed ones of an official file are left out, and counted."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, TypeVar

from foundation.command_line import printable
from foundation.config import ConfigError

PROBLEMS_SHOWN = 5
"""Malformed rows named in full; the rest is counted."""

MALFORMED_AT_MOST = 1e-3
"""Share of a source's rows. The official QQP has a few, which a line feed within a question breaks in two
(nyu-mll/GLUE-baselines #5); a file of another task, or in another layout, is malformed nearly everywhere."""

NumberedRow = tuple[int, Mapping[str, Any] | str]
"""Line (or row) of a file, and the row by column name, or what is wrong with it."""
Made = TypeVar("Made")


def parse(
    source: object,
    rows: Iterable[NumberedRow],
    make: Callable[[Mapping[str, Any], int], Made],
    left_out: dict[str, int],
    places: Iterator[int] | None = None,
) -> list[Made]:
    """`make(row, place)` of every row of `source`; malformed ones are named and counted in `left_out`.

    A malformed row has a place too. `places` counts on from one source to the next; without it the first row has 0.

    Raises:
        ConfigError: more malformed rows than an official file has, or not one that is whole.
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
    total = len(made) + len(problems)
    if len(problems) > MALFORMED_AT_MOST * total:
        raise ConfigError(
            *named,
            f"data_dir: {source}: {len(problems)} of {total} rows are malformed, expected at most 1 in"
            f" {1 / MALFORMED_AT_MOST:,.0f}; mend them, or give the task's own file",
        )
    if not made:
        raise ConfigError(*named, f"data_dir: {source}: no examples")
    if problems:
        left_out[str(source)] = len(problems)
        if os.environ.get("RANK", "0") == "0":
            print(f"{source}: {len(problems)} malformed rows left out:", *map(printable, named), sep="\n  ", flush=True)
    return made
