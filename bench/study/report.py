"""The report of a study, from its results only: gates, measures, effects, samplers, costs, predictions, figure."""

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display on a cluster

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.study.effects import CellMeasure, Effect, passes, verdict
from bench.study.file import Row, Study
from bench.study.results import CellResult, Cells, Results
from electra_sampler.foundation.files import write_atomically
from electra_sampler.foundation.markdown_table import markdown_table

DIFFICULTY = "difficulty loss"
"""The figure's horizontal axis."""
EQUAL_FLOPS = 0.05
"""Rows whose FLOPs differ from the baseline's by at most this share are compared at equal FLOPs."""
GATED = ("MLM loss", "MLM accuracy", "own loss over entropy", "frozen loss over entropy")
"""Numbers beside the gates."""
SAMPLER = (
    *("entropy", "maximum above .9", "share of originals", "effective share", "variance of the estimate"),
    *("KL to the oracle, p_G", "KL to the oracle, p_S", "p_S minus p_G, accuracy"),
    "correlation of the estimate, all_minus_class_means",
)
"""Numbers about the sampling distribution and its estimates; their intervals are over seeds only."""


def write_report(folder: Path, study: Study, keep: bool = True) -> None:
    """Writes `report.md` and `report.png` beside the results and, with `keep`, new intervals into the results.

    Raises:
        ConfigError: the results are damaged, or their conditions differ from the study's.
    """
    results = Results(folder, study)
    folder.mkdir(parents=True, exist_ok=True)
    measured = {name: CellMeasure(results, name) for name in (*study.known_measures(), *SAMPLER)}
    write_atomically(folder / "report.md", ("\n\n".join(sections(study, results.cells, measured)) + "\n").encode())
    if results.cells and study.reference:
        draw(study, results.cells, measured, folder / "report.png")
    if results.cells and keep:
        results.write()


def sections(study: Study, cells: Cells, measured: dict[str, CellMeasure]) -> Iterator[str]:
    """Yields the parts of the report."""
    ran = [row for row in study.rows if any(name == row.name for name, _ in cells)]
    vocabulary = f"{study.vocab_size:,} tokens" if study.vocab_size else "a given vocabulary"
    yield f"# {study.title}"
    yield (
        f"{len(cells)} of {len(study.rows) * len(study.seeds)} cells: `--preset {study.preset}`, {study.steps:,} steps,"
        f" sequences of {study.seq_length}, {vocabulary}. Intervals are 95% Multi-Bootstraps over seeds"
        " and examples together; n is the number of seeds, and † marks cells that fail a gate."
    )
    yield "## Predictions\n\n" + table(
        ("", "prediction", "effect", "n", "verdict"), list(prediction_rows(study, measured))
    )
    yield "## Gates\n\n" + gates(study, cells)
    yield from references(study, cells)
    yield "## Measures\n\n" + means(measured, ran, study.measures)
    against = [(row.name, study.baseline) for row in ran if row.name != study.baseline]
    named = {frozenset((part.row, part.minus)): (part.row, part.minus) for part in study.predictions if part.row}
    others = [(row, minus) for pair, (row, minus) in named.items() if minus and study.baseline not in pair]
    yield f"## Effects: minus {study.baseline}\n\n" + effects(measured, against, study.measures)
    yield "## Effects: further rows of the predictions\n\n" + effects(measured, others, study.measures)
    yield (
        "## Samplers\n\nIntervals of this section are over seeds only.\n\n"
        + means(measured, ran, SAMPLER)
        + f"\n\nMinus {study.baseline}, then further rows of the predictions:\n\n"
        + effects(measured, [*against, *others], SAMPLER)
    )
    names = dict.fromkeys(name for cell in cells.values() for name in cell.numbers)
    further = {"BLiMP by field": sorted(name for name in names if name.startswith("BLiMP") and "," in name)}
    if study.language:
        further["Agreement by term"] = sorted(name for name in names if name.startswith("agreement, "))
        elsewhere = {*measured, *GATED, "unigram entropy", *further["BLiMP by field"], *further["Agreement by term"]}
        further["Language"] = [name for name in names if name not in elsewhere]
    for title, columns in further.items():
        if columns:
            shown = [[row.name, *(spread(cells, row.name, name) for name in columns)] for row in ran]
            yield f"## {title}\n\nMean over seeds (lowest to highest).\n\n" + table(("row", *columns), shown)
    yield "## Costs\n\n" + costs(study, cells)


def means(measured: dict[str, CellMeasure], ran: Sequence[Row], names: Sequence[str]) -> str:
    """Returns a table of several measures of each row."""
    shown = [[show(measured[name].row(row.name)) for row in ran] for name in names]
    return table(("row", *names), [[row.name, *columns] for row, *columns in zip(ran, *shown, strict=True)])


def effects(measured: dict[str, CellMeasure], pairs: Sequence[tuple[str, str]], names: Sequence[str]) -> str:
    """Returns a table of the differences between pairs of rows in several measures."""
    shown = [[show(measured[name].difference(*pair), "+") for pair in pairs] for name in names]
    return table(("row", "minus", *names), [[*pair, *columns] for pair, *columns in zip(pairs, *shown, strict=True)])


def prediction_rows(study: Study, measured: dict[str, CellMeasure]) -> Iterator[list[str]]:
    for number, prediction in enumerate(study.predictions, 1):
        if prediction.measure and prediction.row and prediction.minus:
            effect = measured[prediction.measure].difference(prediction.row, prediction.minus)
            yield [str(number), prediction.text, show(effect, "+"), str(len(effect.seeds)), verdict(prediction, effect)]
        else:
            yield [str(number), prediction.text, "", "", "read the tables"]


def references(study: Study, cells: Cells) -> Iterator[str]:
    """Yields a section if the reference was trained more than once: which seeds each training was crossed with.

    Arithmetic differs between machines, so a reference trained on another machine draws other replacements.
    """
    draws = {key: cell.reference for key, cell in cells.items() if cell.reference}
    found = list(dict.fromkeys(draws.values()))
    if len(found) > 1:
        rows = [
            [row.name, *(", ".join(str(s) for s in study.seeds if draws.get((row.name, s)) == one) for one in found)]
            for row in study.rows
        ]
        yield (
            "## References\n\nThe reference was trained on several machines, whose arithmetic differs, so rows are"
            " paired less closely where one seed has several references. Seeds that each measured:\n\n"
            + table(("row", *(f"reference {number}" for number in range(1, len(found) + 1))), rows)
        )


def gates(study: Study, cells: Cells) -> str:
    """Returns a table of each row's numbers for the gates, and how many of its cells pass."""
    rows = []
    for row in study.rows:
        own = [cell for (name, _), cell in cells.items() if name == row.name]
        passed = f"{sum(passes(cell, study) for cell in own)} of {len(own)}"
        rows.append([row.name, *(spread(cells, row.name, name) for name in GATED), passed])
    entropy = next((f"{cell.numbers['unigram entropy']:.3f}" for cell in cells.values()), "unknown")
    return (
        f"MLM loss at least {study.gates.mlm_gain} below the unigram entropy, {entropy} (rows that train a generator);"
        f" L_D on the row's own replacements below {study.gates.loss_over_entropy} times the entropy of the replaced"
        " share.\n\n" + table(("row", *GATED, "passed"), rows)
    )


def costs(study: Study, cells: Cells) -> str:
    """Returns a table of each row's FLOPs, tokens and seconds per command, as means over its seeds."""
    parts = list(dict.fromkeys(part for cell in cells.values() for part in cell.seconds))
    rows = []
    for row in study.rows:
        if own := [cell for (name, _), cell in cells.items() if name == row.name]:
            seconds = {part: statistics.fmean(cell.seconds.get(part, 0.0) for cell in own) for part in parts}
            sizes = (f"{own[0].flops_per_token / 1e6:.3f}", f"{own[0].tokens / 1e6:.2f}", f"{flops(own[0]) / 1e15:.4f}")
            rows.append([row.name, *sizes, *(f"{value:.0f}" for value in seconds.values())])
    return table(("row", "MFLOP/token", "million tokens", "PFLOP", *(f"{part}, s" for part in parts)), rows)


def flops(cell: CellResult) -> float:
    """Returns the FLOPs of a cell's pre-training, generator, heads and oracle included."""
    return cell.flops_per_token * cell.tokens


def show(effect: Effect, sign: str = "") -> str:
    """Formats a measure or an effect with its interval and number of seeds; a dagger marks cells that fail a gate."""
    if effect.interval is None:
        return "-"
    middle, low, high = (f"{round(value, 9):{sign}.4g}" for value in effect.interval)
    ends = "no examples" if math.isnan(effect.interval[1]) else f"{low} to {high}"
    return f"{middle} ({ends}), n={len(effect.seeds)}{'' if effect.passed else ' †'}"


def spread(cells: Cells, row: str, number: str) -> str:
    """Formats a number's mean over a row's seeds, with the lowest and the highest."""
    values = [cell.numbers.get(number) for (name, _), cell in cells.items() if name == row]
    found = [value for value in values if value is not None]
    some = "" if len(found) == len(values) else f", {len(found)} of {len(values)} seeds"
    return f"{statistics.fmean(found):.4g} ({min(found):.4g} to {max(found):.4g}){some}" if found else "-"


def draw(study: Study, cells: Cells, measured: dict[str, CellMeasure], path: Path) -> None:
    """Draws each measure against difficulty, in a row of two panels: at equal tokens and at equal FLOPs."""
    heights = [name for name in study.measures if not name.startswith(("difficulty", "own"))]
    spent = {name: flops(cell) for (name, _), cell in cells.items()}
    steps = {name: cell.tokens for (name, _), cell in cells.items()}
    figure, axes = plt.subplots(len(heights), 2, figsize=(11, 3.6 * len(heights)), layout="constrained", squeeze=False)
    for column, (title, budget, slack) in enumerate(
        (("equal tokens", steps, 1e-6), ("equal FLOPs", spent, EQUAL_FLOPS))
    ):
        whole = budget.get(study.baseline, max(budget.values()))
        within = [row.name for row in study.rows if abs(budget.get(row.name, 0.0) / whole - 1) <= slack]
        for place, name in enumerate(heights):
            ax = axes[place, column]
            for number, row in enumerate(study.rows):
                if row.name in within:
                    mark(ax, measured[DIFFICULTY].row(row.name), measured[name].row(row.name), number, row.name)
            ax.set(title=title if not place else "", xlabel=DIFFICULTY, ylabel=name)
    handles = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def mark(axes: Axes, across: Effect, up: Effect, number: int, label: str) -> None:
    """Draws the mean of one row of the study, with intervals in both directions."""
    if across.interval is None or up.interval is None:
        return
    (x, *xs), (y, *ys) = across.interval, up.interval
    color = plt.get_cmap("tab20").colors[number % 20]
    axes.plot(xs, (y, y), "|-", (x, x), ys, "_-", color=color, ms=4)  # a bootstrap's interval need not hold the mean
    axes.plot(x, y, "os^Dv"[number % 5], ms=5, color=color, label=label)


def table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    return "\n".join(markdown_table(head, rows))
