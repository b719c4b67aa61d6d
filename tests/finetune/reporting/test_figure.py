"""finetune/reporting/figure.py: every seed is drawn, and the paper's numbers if they are comparable."""

import pytest

from finetune.reporting.figure import draw
from finetune.reporting.results import make_rows
from finetune.reporting.tables import shown_tables
from tests.finetune.conftest import make_record, squad_record


@pytest.mark.parametrize(("train_examples", "legend"), [(8_551, 5), (3_000, 2)])
def test_seeds_are_dots_and_the_papers_numbers_are_drawn_only_for_official_data(
    train_examples: int, legend: int
) -> None:
    scores = (0.31, 0.42, 0.53)
    rows = make_rows(
        [make_record(score, seed=seed, train_examples=train_examples) for seed, score in enumerate(scores)]
        + [make_record(0.1, random_weights=True, train_examples=train_examples)]
    )
    figure = draw(rows, shown_tables(rows))
    (axes,) = figure.axes
    drawn = {round(float(y), 6) for line in axes.lines for y in line.get_ydata()}
    assert {31.0, 42.0, 53.0, 10.0} <= drawn
    assert (59.3 in drawn) == (train_examples == 8_551)
    assert len(axes.get_legend_handles_labels()[1]) == legend


def test_each_column_is_a_panel_with_its_own_scale_and_each_model_has_one_legend_entry() -> None:
    rows = make_rows([make_record(0.3), squad_record(0.6), make_record(0.2, random_weights=True)])
    figure = draw(rows, shown_tables(rows))
    assert [axes.get_title() for axes in figure.axes[:3]] == ["CoLA", "SQuAD 2.0 EM", "SQuAD 2.0 F1"]
    assert len(figure.axes) == 1 + 7
    assert figure.axes[0].get_ylim() != figure.axes[1].get_ylim()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(labels) == len(set(labels)) == 2 + 3
