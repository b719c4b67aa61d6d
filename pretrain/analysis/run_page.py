"""Writes the page of a run, or of several runs side by side: one self-contained HTML file.

All text goes through Jinja's escaping: names of runs and hosts, messages and examples may contain anything.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from foundation.command_line import printable
from foundation.config import ConfigError
from foundation.files import write_atomically
from pretrain.analysis.charts import DASHES, MOST_ROWS, charts, number
from pretrain.analysis.figures import run_names
from pretrain.analysis.health import Diagnosis, diagnose
from pretrain.analysis.panels import PANELS
from pretrain.analysis.run_history import History, nearest_preset, read_history, value_of

FOLDER = Path(__file__).parent
LONGEST_EXAMPLE = 10_000
"""Characters: 512 word pieces have about 3,000."""
DETECTION = {
    "accuracy_masked": "accuracy, masked positions",
    "accuracy_all": "accuracy, all positions",
    "auc_all": "AUC, all positions",
    "auc_masked": "AUC, masked positions",
    "loss_over_entropy": "L_D over the entropy of the replaced share",
}
_MARKED = re.compile(
    r"(?P<special>\[(?:CLS|SEP|UNK|PAD|MASK)\])|\[(?P<original>\S{1,100}?)->(?P<drawn>\S{1,100}?)\](?P<caught>!?)"
    r"|\[(?P<kept>\S{1,100}?)\](?P<suspected>!?)|(?P<plain>[^\s!\[\]]{1,100})!"
)
"""The marks that `training.example` puts into a decoded sequence."""


class Verdict(NamedTuple):
    """The doctor's diagnosis of a run, if it could be made."""

    diagnosis: Diagnosis | None
    unknown: str = ""
    """Why there is no diagnosis."""


class Key(NamedTuple):
    """One of a run's key figures."""

    label: str
    value: float
    percent: bool = False


class Setting(NamedTuple):
    """A setting with its value in the preset and in the run."""

    name: str
    preset: Any
    run: Any


class Piece(NamedTuple):
    """A piece of an example's text."""

    kind: str
    """`plain`; `special` token; `kept`: masked, original drawn; `caught`, `missed`: replaced; `alarm`: false alarm."""
    text: str
    drawn: str = ""
    """The replacement."""


class Gate(NamedTuple):
    """An acceptance criterion of the run, from its `gates.json`."""

    name: str
    value: str
    demand: str
    passed: bool | None


class RunPart(NamedTuple):
    """The contents of the page that concern one run."""

    name: str
    history: History
    verdict: Verdict
    keys: list[Key]
    gates: list[Gate]
    preset: str
    changed: list[Setting]
    unchanged: list[Setting]
    detection: dict[str, list[list[float]]]
    """Detection metrics by label: value, low and high under p_G, then under p_S."""
    example: list[Piece]


def write_page(folders: Sequence[Path], path: Path) -> None:
    """Writes one HTML page about these runs to `path`.

    Raises:
        ConfigError: one of them is not a run folder.
        OSError: the page cannot be written to `path`.
    """
    paths = [str(folder.absolute()) for folder in folders]
    names = run_names([*dict.fromkeys(paths)])
    runs = {name: read_history(Path(folder)) for folder, name in names.items()}
    write_atomically(path, render(runs).encode())


def render(runs: dict[str, History]) -> str:
    """Returns the HTML of the page of these runs, given by name."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # no control character
    )
    environment.filters |= {"number": number, "printable": printable}
    return environment.get_template("run_page.html").render(
        parts=[part_of(name, history) for name, history in runs.items()],
        sections={title: charts(panels, runs) for title, panels in PANELS.items()},
        style=Markup((FOLDER / "run_page.css").read_text()),
        dashes=DASHES,
    )


def part_of(name: str, history: History) -> RunPart:
    """Collects the page's contents for one run."""
    preset, values = nearest_preset(history.description.run)
    settings = [Setting(name, theirs, ours) for name, (theirs, ours) in values.items()]
    detection = {
        label: [
            [value_of(history.evaluation, f"detection/{q}/{key}/{end}") for end in range(3)] for q in ("p_G", "p_S")
        ]
        for key, label in DETECTION.items()
        if math.isfinite(value_of(history.evaluation, f"detection/p_G/{key}/0"))
    }
    text = str(history.log.example.get("text", ""))[:LONGEST_EXAMPLE]
    changed = [setting for setting in settings if setting.preset != setting.run]
    return RunPart(
        name,
        history,
        verdict(history),
        keys(history),
        [
            Gate(str(gate.get("name", "")), str(gate.get("value", "")), str(gate.get("demand", "")), gate.get("passed"))
            for gate in history.gates[:MOST_ROWS]
        ],
        preset,
        changed,
        [setting for setting in settings if setting not in changed],
        detection,
        marked(text),
    )


def verdict(history: History) -> Verdict:
    """Asks the doctor for a diagnosis of the run."""
    try:
        return Verdict(diagnose(history.folder, history.log))
    except ConfigError as error:
        return Verdict(None, str(error))


def keys(history: History) -> list[Key]:
    """Returns the run's key figures, on held-out text if it was evaluated; missing ones are NaN."""
    newest, last = history.newest, history.newest_train
    entropy = value_of(newest, "discriminator_entropy") or math.nan
    return [
        Key("L_D / entropy", value_of(newest, "discriminator_loss") / entropy),
        Key("detection AUC", value_of(newest, "auc_all")),
        Key("detection accuracy, masked", value_of(newest, "accuracy_masked")),
        Key("MLM cross-entropy", value_of(newest, "mlm_loss")),
        Key("MLM accuracy", value_of(newest, "mlm_accuracy")),
        Key("tokens per second", value_of(last, "tokens_per_second")),
        Key("of the speed limit", value_of(last, "peak_share"), percent=True),
        Key("epochs", value_of(last, "epoch")),
    ]


def marked(text: str) -> list[Piece]:
    """Splits an example's text, marked as by `training.example`, into marked and plain pieces."""
    pieces, end = [], 0
    for found in _MARKED.finditer(text):
        pieces.append(Piece("plain", text[end : found.start()]))
        if found["special"]:
            pieces.append(Piece("special", found["special"]))
        elif found["drawn"]:
            pieces.append(Piece("caught" if found["caught"] else "missed", found["original"], found["drawn"]))
        elif found["kept"] and not found["suspected"]:
            pieces.append(Piece("kept", found["kept"]))
        else:
            pieces.append(Piece("alarm", found["kept"] or found["plain"]))
        end = found.end()
    return [*pieces, Piece("plain", text[end:])]
