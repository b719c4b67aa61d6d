"""Claims about the picture of the masks."""

import numpy as np
import pytest

from data_prep.inspect_shards import InspectOptions, main
from data_prep.mask_figure import draw_masks
from data_prep.mask_statistics import MaskStatistics
from foundation.config import ConfigError


def test_the_picture_is_a_png_of_three_panels(built, tmp_path):
    from matplotlib.image import imread

    assert main(InspectOptions(folder=built, figure=tmp_path / "masks.png")) == 0
    height, width, _ = imread(tmp_path / "masks.png").shape
    assert width > 3 * height


def test_a_picture_of_nothing_can_be_drawn(tmp_path):
    draw_masks(MaskStatistics(), np.zeros(0, np.int64), tmp_path / "none.png")
    assert (tmp_path / "none.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["missing/masks.png", "masks.nonsense"])
def test_a_picture_that_cannot_be_written_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be written"):
        draw_masks(MaskStatistics(), np.zeros(0, np.int64), tmp_path / name)
