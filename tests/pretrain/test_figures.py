"""Claims about the figures; that real evaluations draw all three is claimed in test_evaluate.py."""

from pathlib import Path

import matplotlib.image
import numpy as np

from pretrain.figures import draw_detection, draw_training
from tests.pretrain.test_analysis import judgement


def test_training_curves_can_be_drawn_before_the_first_record(tmp_path: Path) -> None:
    draw_training(tmp_path, tmp_path / "training.png")
    assert matplotlib.image.imread(tmp_path / "training.png").shape[2] == 4


def test_a_better_discriminator_gives_another_picture(tmp_path: Path) -> None:
    draw_detection(judgement(), tmp_path / "good.png")
    draw_detection(judgement(d=np.zeros(6)), tmp_path / "bad.png")
    good, bad = (matplotlib.image.imread(tmp_path / name) for name in ("good.png", "bad.png"))
    assert not np.array_equal(good, bad)
