"""Claims about the quantities on a page's charts."""

from pretrain.analysis.panels import PANELS
from pretrain.presets import PAPER
from tests.conftest import REPOSITORY
from tests.pretrain.analysis.runs import values

CURVES = [curve for panels in PANELS.values() for panel in panels for curve in panel.curves]


def test_every_curve_is_a_quantity_that_the_reference_explains() -> None:
    page = (REPOSITORY / "docs/reference/run_folder.md").read_text()
    names = {
        curve.path: (f"`{curve.path}`", f"`{curve.path}/0`", f"`/{curve.path.split('/')[-1]}`") for curve in CURVES
    }
    explained = {path for path, ways in names.items() if any(way in page for way in ways)}
    assert {*names} - explained == {"max_probability/p_S"}  # "and of p_S"


def test_every_objective_has_curves() -> None:
    for objective in PAPER:
        assert {curve.path.split("/")[0] for curve in CURVES} & values(objective, 0).keys()
