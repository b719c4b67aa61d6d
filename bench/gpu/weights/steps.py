"""Measures a step at the sizes that 15 minutes of a GPU may train, most wanted first: `steps.py OUT.json cuda|cpu`."""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.gpu.ablation import STEPS, Switch, measured, shaped
from pretrain.config import with_overrides
from pretrain.engine.hardware import compute_deterministically

PLAIN = ("model.dropout=0", "model.attention_dropout=0")
SIZES = {
    "cuda": (
        *(("small 128", 256, PLAIN), ("base 512", 32, ())),
        *(("small 128", 128, ()), ("small 128", 512, PLAIN), ("base 512", 64, ())),
    ),
    "cpu": (("tiny 32", 8, PLAIN),),
}
"""Preset and length, batch size, settings."""

if __name__ == "__main__":
    out, device = Path(sys.argv[1]), sys.argv[2]
    if device == "cuda":
        compute_deterministically()
    found = {}
    for shape, batch_size, settings in (SIZES[device][0], *SIZES[device]):  # an engine's start chooses the operations
        where = shaped(device, shape)
        where = where._replace(batch_size=batch_size, run=with_overrides(where.run, list(settings)))
        found[f"{shape} {batch_size} {' '.join(settings)}".strip()] = measured(where, Switch(), STEPS[device])
        out.write_text(json.dumps(found, indent=1))
    os._exit(0)  # the interpreter's end can be signal 11 after CUDA graphs
