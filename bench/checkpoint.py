"""Size, save time and load time of our checkpoints against DeepSpeed's own and its universal checkpoints.

    python bench/checkpoint.py [--preset small]

One process, ZeRO 1, fp32. Prints one line per format.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.models import CONFIGS, fresh_model, new_engine
from bench.timing import seconds_of
from foundation.command_line import run_command
from foundation.config import StrictConfig
from pretrain.engine.checkpoint import load, newest_valid, save
from pretrain.engine.engine import Engine
from pretrain.job.processes import start_processes
from pretrain.presets import preset

REPEATS = 3
CONVERTER = "from deepspeed.checkpoint.ds_to_universal import main, parse_arguments; main(parse_arguments())"


class Options(StrictConfig):
    """The command line of `checkpoint.py`."""

    preset: Literal["tiny", "small", "base"] = "small"
    """model sizes"""


def main(options: Options) -> int:
    engine = build_engine(options.preset)
    state = engine.full_state()
    with tempfile.TemporaryDirectory() as name:
        ours, theirs, universal = (Path(name) / part for part in ("ours", "deepspeed", "universal"))

        def save_ours() -> None:
            shutil.rmtree(ours, ignore_errors=True)
            save(ours, 1, engine.full_state(), {}, keep_last=1)

        def load_ours() -> None:
            found = newest_valid(ours)
            assert found is not None
            engine.load_full_state(load(found)[0])

        def convert() -> None:
            shutil.rmtree(universal, ignore_errors=True)
            folders = ["--input_folder", theirs / "1", "--output_folder", universal, "--inject_missing_state"]
            subprocess.run([sys.executable, "-c", CONVERTER, *folders], check=True, capture_output=True)

        def load_universal() -> None:
            deepspeed._config.load_universal_checkpoint = True
            load_theirs(universal)

        def load_theirs(folder: Path) -> None:
            path, _ = deepspeed.load_checkpoint(str(folder.parent), tag=folder.name)
            assert path, f"DeepSpeed found no checkpoint in {folder}"

        deepspeed = engine.backend.engine
        print(f"{sum(t.numel() for t in state.weights.values()) / 1e6:.1f} M parameters")
        report("ours, with checksums and fsync", save_ours, load_ours, ours)
        report(
            "DeepSpeed's own",
            lambda: deepspeed.save_checkpoint(str(theirs), tag="1"),
            lambda: load_theirs(theirs / "1"),
            theirs,
        )
        report("DeepSpeed's universal, saving = converting", convert, load_universal, universal, repeats=1)
    return 0


def report(
    what: str, save: Callable[[], object], load: Callable[[], object], folder: Path, repeats: int = REPEATS
) -> None:
    saving = min(seconds_of(save) for _ in range(repeats))
    loading = min(seconds_of(load) for _ in range(REPEATS))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{what:<42} save {saving:6.2f} s   load {loading:6.2f} s   {size / 1e6:8.1f} MB", flush=True)


def build_engine(name: str) -> Engine:
    """Returns an engine with the preset's model and Adam's state."""
    run = preset(name)
    return new_engine(fresh_model(run), run, CONFIGS / "zero1_fp32.json", run.batch_size, start_processes())


if __name__ == "__main__":
    sys.exit(run_command(main, Options, __doc__))
