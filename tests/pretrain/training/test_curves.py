"""Claims about the names and groups of curves."""

import re

import pytest

from pretrain.training.curves import CHARTS, GROUPS, Histogram, curve_name, curves_of, flat
from tests.conftest import REPOSITORY


def test_every_metric_has_a_group_and_there_are_a_dozen() -> None:
    table = (
        (REPOSITORY / "docs" / "reference" / "run_folder.md")
        .read_text()
        .split("| name | what it is |")[1]
        .split("\n\n")[0]
    )
    named = " ".join(row.split(" | ")[0] for row in table.splitlines())
    names = set(re.findall(r"`([a-z]\w+)", named))
    assert len(names) > 30 and names <= GROUPS.keys()
    assert len(set(GROUPS.values())) == 12 and CHARTS.keys() <= set(GROUPS.values())


def test_each_metric_is_on_exactly_one_chart() -> None:
    names = [name for charts in CHARTS.values() for chart in charts for name in chart.split()]
    assert len(names) == len(set(names))


def test_each_number_of_a_record_is_a_curve_and_tenths_are_a_histogram() -> None:
    shares = [0.1] * 10
    values = {
        "entropy": {"p_G": 3.0, "p_S": 4.0},
        "epoch_of_folder": [2.0, 3.0],
        "max_probability": {"p_G": shares, "p_S": [0.0]},
    }
    scalars, histograms, texts = curves_of("train", values)
    assert scalars == {
        "Sampling/entropy/p_G/train": 3.0,
        "Sampling/entropy/p_S/train": 4.0,
        "Data/epoch_of_folder/0/train": 2.0,
        "Data/epoch_of_folder/1/train": 3.0,
    }
    ((name, histogram),) = histograms.items()
    assert name == "Sampling/max_probability/p_G/train" and not texts
    assert histogram == Histogram([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], shares)


def test_a_metric_without_a_group_is_not_a_curve() -> None:
    with pytest.raises(KeyError, match="unheard_of"):
        curve_name("train", "unheard_of/p_G")


def test_paths_of_nested_values() -> None:
    values = {"entropy": {"p_G": 3.0}, "max_probability": {"p_G": [0.25, 0.75]}, "skipped": 0}
    paths = ["entropy/p_G", "max_probability/p_G/0", "max_probability/p_G/1", "skipped"]
    assert dict(flat(values)) == dict(zip(paths, (3.0, 0.25, 0.75, 0), strict=True))
