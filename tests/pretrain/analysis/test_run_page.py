"""Claims about the page of a run, parsed as a browser parses it."""

import base64
import json
import re
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from itertools import cycle, islice
from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from pretrain.analysis.figures import CHARTS
from pretrain.analysis.run_page import write_page
from pretrain.job.rank_log import EndRecord, write_record
from pretrain.runs.folder import DESCRIPTION
from tests.conftest import REPOSITORY
from tests.pretrain.analysis.runs import values, write_run

VOID = {"meta", "img"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;{{ 7*7 }}$x^{"
METRICS = [metric for charts in CHARTS.values() for chart in charts for metric in chart.metrics.values()]


class Reader(HTMLParser):
    """Collects every element with its attributes, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    @property
    def images(self) -> list[str]:
        sources = [found["src"] or "" for tag, found in self.elements if tag == "img"]
        assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
        return [base64.b64decode(source.split(",", 1)[1]).decode() for source in sources]


def page_of(*folders: Path) -> Reader:
    path = folders[0] / "page.html"
    write_page(folders, path)
    return Reader(path)


def test_text_written_by_others_is_escaped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / HOSTILE.replace("/", "|"), 50)
    description = json.loads((folder / DESCRIPTION).read_text())
    description |= {"data": [HOSTILE], "init_from": [HOSTILE], "versions": {HOSTILE: HOSTILE}}
    (folder / DESCRIPTION).write_text(json.dumps(description))
    (folder / "logs").mkdir()
    write_record(folder, EndRecord(0, HOSTILE, 1, HOSTILE, "error", 1, 3, HOSTILE + "\x1b[31m\u202e"))
    (folder / "logs" / "rank-0000.log").write_text(f"WARNING: {HOSTILE}\n")
    names = ("time", "step", "first_host", "device", "precision", "code")
    (folder / "starts.jsonl").write_text(json.dumps(dict.fromkeys(names, HOSTILE) | {"processes": [HOSTILE]}))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "example", "step": 50, "text": f"[CLS] [a->b]! {HOSTILE}"}) + "\n")
    page = page_of(folder, write_run(tmp_path / "other", 50))
    assert not {"script", "iframe", "object", "link", "base", "form"} & {tag for tag, _ in page.elements}
    assert not [name for _, found in page.elements for name in found if name.startswith("on")]
    assert len(page.images) == 3 and [ElementTree.fromstring(image) for image in page.images]
    assert page.text.count("<script>alert(1)<") >= 10 and "{{ 7*7 }}" in page.text
    assert "\x1b" not in page.source and "\u202e" not in page.source and "\\x1b[31m\\u202e" in page.source


@pytest.fixture(scope="module")
def page_under(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reader]:
    """The page of a run of an objective."""
    return cache(lambda objective: page_of(write_run(tmp_path_factory.mktemp("run"), 50, 100, objective=objective)))


def test_the_page_loads_nothing_from_elsewhere(page_under: Callable[[str], Reader]) -> None:
    page = page_under("hp_loss")
    assert not re.findall(r"\w+://|url\(|@import", page.source)
    assert not any(re.search(r"url\((?!#)|@import|href=\"[^#]", image) for image in page.images)
    (policy,) = [found["content"] for _, found in page.elements if "http-equiv" in found]
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@pytest.mark.parametrize("objective", ["hp_loss", "mlm"])
def test_objectives_with_and_without_a_discriminator_have_a_page(
    objective: str, page_under: Callable[[str], Reader]
) -> None:
    page = page_under(objective)
    assert objective in page.text and "Generator" in page.images[0]
    assert ("Detection" in page.images[0]) == (objective != "mlm")
    assert ("Estimated and actual loss" in "".join(page.images)) == objective.startswith("hp_loss")


def test_several_runs_share_the_charts(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "first", 10, 20), write_run(tmp_path / "second", 10, objective="mlm"))
    assert all("first" in image and "second" in image for image in page.images)
    assert "2 runs" in page.text and "Verdict on second" in page.text


def test_a_run_that_failed_before_its_first_record_and_has_a_damaged_log_has_a_page_that_says_so(
    tmp_path: Path,
) -> None:
    write_run(tmp_path)
    (tmp_path / "logs").mkdir()
    write_record(tmp_path, EndRecord.of(0)._replace(reason="error", exit_code=1, sentence="out of memory"))
    (tmp_path / "metrics.jsonl").write_bytes(b'{"kind": "train", "st\n\x00\xff\n')
    text = " ".join(page_of(tmp_path).text.split())
    assert "Failed, step 0 of 2,000" in text and "out of memory" in text and "Nothing is logged yet" in text
    assert "2 lines of metrics.jsonl are damaged or incomplete" in text


def test_the_page_begins_with_the_doctors_report(tmp_path: Path) -> None:
    write_run(tmp_path, 50, held_out=False)
    record = values("electra", 0) | {"tokens_so_far": 64 * 64 * 1000, "mlm_accuracy": 0.99, "replace_rate": 0.01}
    line = json.dumps({"kind": "train", "step": 1000} | record | {"replaced_share": 0.0015, "p_S": "<b>"})
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    page = page_of(tmp_path)
    assert "generator too good" in page.source.split("<img")[0] and "the limit is 0.9" in page.text


@pytest.mark.parametrize("given", [("-1", "NaN", "[1]"), ("1e308", "1" + 400 * "0")], ids=["odd", "large"])
def test_whatever_the_values_of_a_log_are_there_is_a_page_without_nan(given: tuple[str, ...], tmp_path: Path) -> None:
    record = {"kind": "train", "step": 1000} | values("hp_loss", 0) | {"tokens_so_far": 64_000}
    names = record.keys() - {"kind", "step"}
    texts = [json.dumps(record | {name: "here"}).replace('"here"', value) for value in given for name in names]
    write_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("\n".join(texts * 2) + "\n")
    starts = [f'{{"step": {value}, "zero_stage": {value}}}\n' for value in given]
    (tmp_path / "starts.jsonl").write_text("".join(starts))
    page = page_of(tmp_path)
    assert not re.search(r"\bnan\b|Infinity|\binf\b", page.text, re.IGNORECASE)


def test_a_setting_that_differs_from_the_preset_is_shown_beside_it(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, seed=7, batch_size=32))
    assert re.findall(r"<tr><td>(\w+)</td><td>(.*?)</td><td>(.*?)</td></tr>", page.source) == [
        ("batch_size", "64", "32"),
        ("seed", "0", "7"),
    ]


def test_every_quantity_is_explained_by_the_reference() -> None:
    page = (REPOSITORY / "docs/reference/run_folder.md").read_text()
    ways = {path: (f"`{path}`", f"`{path}/0`", f"`/{path.split('/')[-1]}`") for path in METRICS}
    explained = {path for path, names in ways.items() if any(name in page for name in names)}
    assert {*METRICS} - explained <= {"max_probability/p_G/9", "max_probability/p_S/9"}  # a tenth of a list


def lines(objective: str, count: int) -> Iterator[bytes]:
    """Generates training records as in a log."""
    bodies = [json.dumps(values(objective, seed))[1:].encode() for seed in range(500)]
    for step, body in enumerate(islice(cycle(bodies), count), 1):
        yield b'{"kind": "train", "step": %d, %b\n' % (step, body)


def test_six_runs_make_a_page_under_two_megabytes_within_seconds(tmp_path: Path) -> None:
    """Measured in this process's CPU time, so that it holds on any machine."""
    folders = [write_run(tmp_path / f"run-{number}", 10) for number in range(6)]
    for folder in folders:
        with (folder / "metrics.jsonl").open("wb") as file:
            file.writelines(lines("hp_loss", 5_000 if folder == folders[0] else 500))
    started = time.process_time()
    page = page_of(*folders)
    assert time.process_time() - started < 40
    assert len(page.source.encode()) < 2e6


def test_a_page_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with pytest.raises(OSError, match=str(folder / "run.json" / "page.html")):
        write_page([folder], folder / "run.json" / "page.html")


def test_a_page_replaces_a_page_and_no_other_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert page_of(folder).source == page_of(folder).source
    (tmp_path / "mine.html").write_text("<html>mine</html>")
    with pytest.raises(ConfigError, match=r"output: .*mine\.html was not written by this command"):
        write_page([folder], tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "<html>mine</html>"
