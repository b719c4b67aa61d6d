"""Writes the page of a run, or of several runs side by side: one self-contained HTML file.

Jinja escapes all text, since names of runs and hosts, messages and examples may contain anything.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from foundation.command_line import printable
from foundation.config import ConfigError
from foundation.files import write_atomically
from pretrain.analysis.figures import CHARTS, draw_charts, run_names
from pretrain.analysis.health import diagnose, report
from pretrain.analysis.run_history import History, nearest_preset, read_history

TEMPLATE = "run_page.html"
MOST_ROWS = 40
GATE = ("name", "value", "demand", "passed")
END = ("rank", "host", "time", "step", "reason", "exit_code", "sentence")
START = ("time", "step", "processes", "first_host", "device", "precision", "zero_stage", "code")


class Table(NamedTuple):
    """A table of the page: column names and rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]


class RunPart(NamedTuple):
    """The contents of the page that concern one run."""

    history: History
    doctor: list[str]
    """Lines of the health report (health.py), or why there is none."""
    preset: str
    """The preset most like the run."""
    changed: Table
    """The settings that differ from that preset."""
    gates: Table
    starts: Table
    ends: Table


def write_page(folders: Sequence[Path], path: Path) -> None:
    """Writes one HTML page about these runs to `path`.

    Raises:
        ConfigError: one of them is not a run folder.
        OSError: the page cannot be written to `path`.
    """
    names = run_names([*dict.fromkeys(str(folder.absolute()) for folder in folders)])
    runs = {printable(name): read_history(Path(folder)) for folder, name in names.items()}
    logs = {name: history.log for name, history in runs.items()}
    images = {title: draw_charts(charts, logs) for title, charts in CHARTS.items()}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # no control character
    )
    page = environment.get_template(TEMPLATE).render(
        parts={name: _part(history) for name, history in runs.items()},
        images={title: base64.b64encode(image.encode()).decode() for title, image in images.items() if image},
    )
    write_atomically(path, page.encode())


def _part(history: History) -> RunPart:
    try:
        doctor = report(diagnose(history.folder, history.log))
    except ConfigError as error:
        doctor = [str(error)]
    preset, changed = nearest_preset(history.description.run)
    return RunPart(
        history,
        doctor,
        preset,
        Table(("setting", preset, "this run"), [(name, *values) for name, values in changed.items()]),
        _table(GATE, history.gates),
        _table(START, history.starts),
        _table(END, [end._asdict() for end in history.ends]),
    )


def _table(names: Sequence[str], records: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a table of the newest records, with a column per field in `names`."""
    return Table(names, [[record.get(name, "") for name in names] for record in records[-MOST_ROWS:]])
