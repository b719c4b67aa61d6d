"""Named measurements of one part of `bench/gpu.py`: each is recorded when it ends, and a passed one is not repeated."""

import json
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from electra_sampler.foundation.files import write_atomically

Figures = dict[str, Any]
Item = Callable[[], Figures]


class SkippedError(Exception):
    """Raised by an item that cannot run here; the message says why."""


def run_items(items: Mapping[str, Item], product: Path) -> int:
    """Runs the items that `product` does not record as passed, and records each; returns 1 if one failed.

    Items that an earlier call did not finish come last, so that one that hangs does not block the others.
    """
    before = json.loads(product.read_text()) if product.is_file() else {}
    records = {name: before.get(name, {"outcome": "not reached"}) for name in items}
    waiting = [name for name, record in records.items() if record["outcome"] != "passed"]
    for name in sorted(waiting, key=lambda name: records[name]["outcome"] == "began"):
        keep(records | {name: {"outcome": "began"}}, product)
        records[name] = outcome(items[name])
        shown = " ".join(f"{key}={value}" for key, value in records[name].items() if key != "trace")
        print(f"{name}: {shown}", flush=True)
        keep(records, product)
    return int(any(record["outcome"] == "failed" for record in records.values()))


def outcome(item: Item) -> Figures:
    """Runs an item; returns its outcome with its results, or with the reason it was skipped or failed."""
    try:
        return {"outcome": "passed", **item()}
    except SkippedError as reason:
        return {"outcome": "skipped", "reason": str(reason)}
    except Exception as error:
        return {"outcome": "failed", "reason": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def keep(values: Any, path: Path) -> None:
    """Writes the results so far to `path`."""
    write_atomically(path, json.dumps(values, indent=1).encode() + b"\n")
