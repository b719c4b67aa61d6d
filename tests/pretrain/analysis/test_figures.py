"""Claims about the figures; test_evaluate.py checks that real evaluations draw all."""

from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np

from pretrain.analysis.figures import draw_crossing


def estimates(value: float) -> dict[str, list[float]]:
    return {name: [value, value - 0.01, value + 0.01] for name in ("accuracy_masked", "accuracy_all")}


def crossed(steps: tuple[int, ...], *runs: tuple[str, float]) -> dict[str, Any]:
    """Crossed results in which every run's discriminator has its own accuracy on the first run's replacements."""
    return {
        "entries": [
            {"discriminator": run, "sampler": runs[0][0], "distribution": "p_G", "step": step, **estimates(value)}
            for step in steps
            for run, value in runs
        ]
    }


def test_the_crossing_is_drawn_for_one_step_and_for_several(tmp_path: Path) -> None:
    pictures = []
    for number, (steps, value) in enumerate((((10,), 0.7), ((10, 20), 0.7), ((10, 20), 0.8))):
        draw_crossing(crossed(steps, ("runs/a", 0.6), ("runs/b", value)), tmp_path / f"{number}.png")
        pictures.append(matplotlib.image.imread(tmp_path / f"{number}.png"))
    assert not np.array_equal(pictures[0], pictures[1]) and not np.array_equal(pictures[1], pictures[2])


def test_runs_whose_folders_share_a_name_are_drawn_separately(tmp_path: Path) -> None:
    draw_crossing(crossed((10, 20), ("a/run", 0.5), ("b/run", 0.6)), tmp_path / "apart.png")
    assert matplotlib.image.imread(tmp_path / "apart.png").shape[2] == 4
