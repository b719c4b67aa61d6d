"""Claims about the charts on a page."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pretrain.analysis.charts import MOST_ROWS, Chart, Line, charts, evenly, finding, number
from pretrain.analysis.panels import PALETTE, PANELS
from pretrain.analysis.run_history import read_history, value_of
from tests.pretrain.analysis.runs import write_run

ALL = [panel for panels in PANELS.values() for panel in panels]


def drawn(*folders: Path) -> list[Chart]:
    return charts(ALL, {folder.name: read_history(folder) for folder in folders})


def test_every_number_on_a_chart_is_in_the_log(tmp_path: Path) -> None:
    history = read_history(write_run(tmp_path, 10, 20, 30))
    generator = drawn(tmp_path)[0]
    for line, records in zip(generator.lines, (history.log.train, history.log.held_out), strict=True):
        assert line.points == {record["step"]: value_of(record, "mlm_loss") for record in records}
    assert generator.rows == [(x, [line.points[x] for line in generator.lines]) for x in (10, 20, 30)]


@pytest.mark.parametrize("steps", [(10,), (10, 20, 30)])
def test_a_chart_uses_only_the_pages_colors_and_has_unique_ids(steps: tuple[int, ...], tmp_path: Path) -> None:
    found = drawn(write_run(tmp_path / "run", *steps))
    assert len(found) > 10
    ids: list[str] = []
    for chart in found:
        ElementTree.fromstring(chart.svg)
        assert not re.search(r"#[0-9a-f]{6}", chart.svg) and "var(--" in chart.svg
        ids += re.findall(r' id="([^"]+)"', chart.svg)
        assert set(re.findall(r"#(\w+)", chart.svg)) <= {*ids}
    assert len(ids) == len({*ids})


def test_each_of_several_runs_has_its_color_and_fewer_curves(tmp_path: Path) -> None:
    found = drawn(write_run(tmp_path / "a", 10, 20), write_run(tmp_path / "b", 10, objective="mlm"))
    assert {(line.run, line.color) for line in found[0].lines} == {("a", PALETTE[0]), ("b", PALETTE[1])}
    assert all(len({line.label for line in chart.lines}) <= chart.panel.compared for chart in found)


def test_a_run_without_discriminator_shows_its_other_curves(tmp_path: Path) -> None:
    titles = [chart.panel.title for chart in drawn(write_run(tmp_path, 10, objective="mlm"))]
    assert "Generator" in titles and "Speed" in titles
    assert not {"Discriminator", "Detection", "Replaced", "Ratio of p_G to p_S"} & {*titles}


def test_extreme_numbers_are_drawn_or_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, 10)
    for step, value in enumerate(("NaN", "-Infinity", "1e29", "-1e29", "1e308", "0", "-3", "5e-324", "[]", '"x"'), 20):
        fields = ", ".join(f'"{name}": {value}' for name in ("mlm_loss", "gradient_norm", "tokens_per_second"))
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(f'{{"kind": "train", "step": {step}, {fields}}}\n')
    generator = drawn(tmp_path)[0]
    assert [*generator.lines[0].points] == [10, 22, 23, 25, 26, 27]


def test_the_caption_describes_the_curve() -> None:
    panel = ALL[0]
    falling, flat = {50: 7.049, 2000: 5.055}, {50: 0.43, 2000: 0.431}
    lines = [Line("a", "loss", PALETTE[0], 0, falling), Line("a", "loss", PALETTE[0], 0, {2000: 5.2}, held_out=True)]
    assert finding(panel, lines) == "Loss from 7.05 down to 5.05, held out 5.20"
    assert finding(panel, [Line("a", "L_D", PALETTE[0], 0, flat)]) == "L_D near 0.431"
    others = [Line("b", "loss", PALETTE[1], 0, flat)]
    assert finding(panel, lines + others) == "Loss at the end, held out: a 5.20, b 0.431"


def test_a_table_keeps_both_ends_and_all_evaluations() -> None:
    lines = [
        Line("a", "loss", PALETTE[0], 0, dict.fromkeys(range(1000), 1.0)),
        Line("a", "loss", PALETTE[0], 0, {333: 1.0, 777: 1.0}, held_out=True),
    ]
    steps = [x for x, _ in Chart(ALL[0], lines, "", "").rows]
    assert {0, 333, 777, 999} <= {*steps} and len(steps) <= 2 * MOST_ROWS


def test_thinning_out_keeps_first_and_last() -> None:
    assert evenly([*range(100)], 3) == [0, 50, 99] and evenly([1], 3) == [1] and evenly([], 3) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("nan"), "–"), (0.0, "0"), (40612.7, "40,613"), (-0.31, "-0.310"), (1.02e-6, "1.02e-06")],
)
def test_a_number_has_as_many_digits_as_a_reader_needs(value: float | None, text: str) -> None:
    assert number(value) == text
