"""Writes the page of a run, or of several runs side by side: one self-contained HTML file.

Jinja escapes all text, since names of runs and hosts, messages and examples may contain anything.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from electra_sampler.foundation.command_line import printable
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.files import require_own, write_atomically
from pretrain.analysis.figures import CHARTS, draw_charts
from pretrain.analysis.health import diagnose, report
from pretrain.analysis.run_history import History, nearest_preset, read_history


def write_page(folders: Sequence[Path], path: Path) -> None:
    """Writes one HTML page about these runs to `path`.

    Raises:
        ConfigError: one of them is not a run folder, or `path` is a file of another kind.
        OSError: the page cannot be written to `path`.
    """
    require_own(path, '<meta name="generator" content="electra-sampler page">')
    paths = [*dict.fromkeys(folder.absolute() for folder in folders)]
    own = [path.name for path in paths]
    runs = {printable(path.name if own.count(path.name) == 1 else str(path)): read_history(path) for path in paths}
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
    page = environment.get_template("run_page.html").render(
        parts={name: _part(history) for name, history in runs.items()},
        images={title: base64.b64encode(image.encode()).decode() for title, image in images.items() if image},
    )
    write_atomically(path, page.encode())


def _part(history: History) -> dict[str, Any]:
    """Returns what the page shows of one run besides its charts: `doctor` is the health report, or why there is none;
    `settings` are those that differ from the nearest preset.
    """
    try:
        doctor = report(diagnose(history.folder, history.log))
    except ConfigError as error:
        doctor = [str(error)]
    preset, changed = nearest_preset(history.description.run)
    settings = [{"setting": name, preset: theirs, "this run": ours} for name, (theirs, ours) in changed.items()]
    return {"history": history, "doctor": doctor, "preset": preset, "settings": settings}
