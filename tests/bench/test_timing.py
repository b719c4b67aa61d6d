"""Claims about timing: the cost of a first call is not counted."""

import time
from itertools import count

from bench.timing import median_seconds


def test_the_first_call_is_not_counted() -> None:
    calls = count()
    assert median_seconds(lambda: time.sleep(0.0 if next(calls) else 0.5), 2) < 0.25
    assert next(calls) == 3
