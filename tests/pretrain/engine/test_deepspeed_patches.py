"""Claims about the patches to DeepSpeed: for one version only, and only for speed."""

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from pretrain.engine.deepspeed_patches import TESTED
from tests.conftest import REPOSITORY
from tests.pretrain.engine import engine_worker as worker
from tests.pretrain.engine.patches_worker import STEPS


def test_the_installed_version_is_the_one_the_patches_were_tested_with() -> None:
    assert importlib.metadata.version("deepspeed") == TESTED, (
        "review pretrain/engine/deepspeed_patches.py: each patch against DeepSpeed's source, its gain measured"
    )
    assert f"deepspeed=={TESTED}\n" in (REPOSITORY / "constraints.txt").read_text()


@pytest.mark.long
def test_another_version_trains_the_same_without_patches_and_one_line_says_so(
    tmp_path: Path, launch: Callable[..., Popen[str]]
) -> None:
    process = launch(2, worker.__file__.replace("engine_worker", "patches_worker"), tmp_path / "figures.json")
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert output.count("WARNING: deepspeed 0.19.9 is not ") == 1
    figures, plain = json.loads((tmp_path / "figures.json").read_text()), worker.plain_losses()[:STEPS]
    for name in (*worker.FP32, *worker.BF16):
        assert figures[name]["losses"] == pytest.approx(plain, rel=1e-6 if name in worker.FP32 else 2e-2), name
        assert figures[name]["spoiled"] == {"overflow": True, "unchanged": True}, name
