"""Claims about the figures; test_evaluate.py checks that real evaluations draw all three."""

from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np

from pretrain.analysis.figures import draw_crossing, draw_detection, draw_steps, draw_training
from tests.pretrain.analysis.test_analysis import judgement


def test_training_curves_can_be_drawn_before_the_first_record(tmp_path: Path) -> None:
    draw_training(tmp_path, tmp_path / "training.png")
    assert matplotlib.image.imread(tmp_path / "training.png").shape[2] == 4


def test_a_better_discriminator_changes_the_figure(tmp_path: Path) -> None:
    draw_detection(judgement(), tmp_path / "good.png")
    draw_detection(judgement(d=np.zeros(6)), tmp_path / "bad.png")
    good, bad = (matplotlib.image.imread(tmp_path / name) for name in ("good.png", "bad.png"))
    assert not np.array_equal(good, bad)


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


def test_a_run_without_discriminator_shows_only_its_generator(tmp_path: Path) -> None:
    own = {"generator": {"mlm_accuracy": [0.3, 0.2, 0.4]}}
    more = own | {"detection": {"p_G": {"accuracy_masked": [0.7, 0.6, 0.8]}}}
    drawn = []
    for number, result in enumerate((own, more)):
        draw_steps([{"step": step, **result} for step in (1, 2)], tmp_path / f"{number}.png")
        drawn.append(matplotlib.image.imread(tmp_path / f"{number}.png"))
    ink = [(picture[..., :3] < 0.9).sum() for picture in drawn]
    assert 0 < ink[0] < ink[1]
