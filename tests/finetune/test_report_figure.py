"""finetune/report_figure.py: every seed is drawn, and the paper's numbers where they compare."""

import matplotlib.pyplot as plt
import pytest

from finetune.report import shown_tables
from finetune.report_figure import draw_figure
from finetune.results import make_rows
from tests.finetune.conftest import make_record, squad_record


@pytest.mark.parametrize(("train_examples", "legend"), [(8_551, 4), (3_000, 2)])
def test_seeds_are_dots_and_the_paper_is_drawn_on_official_data_only(train_examples: int, legend: int) -> None:
    scores = (0.31, 0.42, 0.53)
    rows = make_rows(
        [make_record(score, seed=seed, train_examples=train_examples) for seed, score in enumerate(scores)]
        + [make_record(0.1, random_weights=True, train_examples=train_examples)]
    )
    figure = draw_figure(rows, shown_tables(rows))
    (axes,) = figure.axes
    drawn = {round(float(y), 6) for line in axes.lines for y in line.get_ydata()}
    assert {31.0, 42.0, 53.0, 10.0} <= drawn
    assert (59.3 in drawn) == (train_examples == 8_551)
    assert len(axes.get_legend_handles_labels()[1]) == legend
    plt.close(figure)


def test_each_table_is_a_panel_and_each_model_stands_once_in_the_legend() -> None:
    rows = make_rows([make_record(0.3), squad_record(0.6)])
    figure = draw_figure(rows, shown_tables(rows))
    assert [axes.get_ylabel().split()[0] for axes in figure.axes] == ["GLUE", "SQuAD"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(labels) == len(set(labels)) == 3
    plt.close(figure)
