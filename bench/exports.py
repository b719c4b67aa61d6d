"""Checks that a code change alters no export: exports untrained runs in two checkouts and compares all files.

    python bench/exports.py --before CHECKOUT --data SHARDS

This checkout holds the change, `CHECKOUT` the commit before it. There is a run for every preset, with narrower layers,
for every objective and way to share embeddings. The exit code is 1 unless every file has the same bytes.
"""

import json
import sys
from pathlib import Path

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.checkouts import REPOSITORY, run_in
from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.config import StrictConfig

PROGRAM = """
import json, sys, tempfile
from itertools import product
from pathlib import Path
import torch
from electra_sampler.foundation.files import file_sha256
from pretrain.config import with_overrides
from pretrain.data.shards import Shards
from pretrain.engine.checkpoint import EngineState, save
from pretrain.export import ExportOptions, main
from pretrain.presets import PRESETS, with_objective
from pretrain.runs.models import build_model
from pretrain.runs.folder import CHECKPOINTS, describe, write_run

shards, sums = Shards(Path(sys.argv[1])), {}
ways = [*product(("hp_loss", "hp_dist", "electra"), ("es", "nes", "gdes")), ("mlm", "es")]
for preset, (objective, sharing) in product(PRESETS, ways):
    sizes = PRESETS[preset].model
    narrow = {name: getattr(sizes, name) * 4 * sizes.heads // sizes.hidden_size
              for name in ("hidden_size", "intermediate_size", "embedding_size", "generator_hidden_size")}
    settings = narrow | {"layers": 2, "embedding_sharing": sharing, "initializer_range": 0.3}
    changes = [f"model.{name}={value}" for name, value in settings.items()]
    run = with_overrides(with_objective(PRESETS[preset], objective), changes)
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place) / "run", Path(place) / "out"
        description = describe(run, shards, (), (), False, "fp32", "unknown")
        write_run(folder, description, {})
        model = build_model(description)
        torch.manual_seed(0)
        weights = {name: torch.nn.init.normal_(weight.detach()) for name, weight in model.named_parameters()}
        save(folder / CHECKPOINTS, 1, EngineState(1, {}, weights, {"exp_avg": weights}), {}, keep_last=1)
        main(ExportOptions(run=folder, out=out))
        for file in out.rglob("*.*"):
            sums[f"{preset} {objective} {sharing} {file.relative_to(out)}"] = file_sha256(file)
print(json.dumps(sums))
"""


class ExportsOptions(StrictConfig):
    """The command line of `exports.py`."""

    before: Path
    """checkout of the commit to compare with"""
    data: Path
    """shards that both checkouts can read"""


def main(options: ExportsOptions) -> int:
    before, after = (sums(checkout.resolve(), options.data.resolve()) for checkout in (options.before, REPOSITORY))
    other = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
    print(*other, f"{len(before)} files before, {len(after)} after, {len(other)} not equal", sep="\n")
    return 1 if other else 0


def sums(checkout: Path, data: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file that a checkout exports."""
    said = run_in(checkout, [sys.executable, "-c", PROGRAM, data], "exports")
    found: dict[str, str] = json.loads(said.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(run_command(main, ExportsOptions, __doc__))
