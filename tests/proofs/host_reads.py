"""Counts the operations that make the host wait for the device, by the calling file.

    python tests/proofs/host_reads.py COUNTS.json RUN_OPTIONS...

On a CPU nothing waits, but the calls are those that would on a GPU.
"""

import json
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torch.overrides import TorchFunctionMode

from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.files import ROOT
from pretrain.planning.options import RunOptions
from pretrain.run import main

WAITING = {
    *("item", "tolist", "numpy", "cpu", "nonzero", "equal", "allclose", "unique", "masked_select", "__array__"),
    *("__bool__", "__float__", "__int__", "__index__"),
}


class HostReads(TorchFunctionMode):
    """Counts calls that read a tensor's values, by the calling file of the project or library."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in WAITING:
            caller = traceback.extract_stack(limit=2)[0]
            file = Path(caller.filename)
            place = file.relative_to(ROOT) if file.is_relative_to(ROOT / "pretrain") else Path(*file.parts[-2:])
            self.counts[f"{place} {name}"] += 1
        return function(*arguments, **(options or {}))


if __name__ == "__main__":
    counts, sys.argv = sys.argv[1], [sys.argv[0], *sys.argv[2:]]
    reads = HostReads()
    try:
        with reads:
            run_command(main, RunOptions, "")
    finally:
        Path(counts).write_text(json.dumps(reads.counts))
