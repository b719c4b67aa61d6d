"""Claims about the page of a run, parsed as a browser parses it."""

import json
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import cycle, islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pretrain.analysis.run_history import read_history
from pretrain.analysis.run_page import FOLDER, Piece, keys, marked, write_page
from pretrain.job.rank_log import EndRecord, write_record
from pretrain.training.curves import flat
from pretrain.training.run_folder import DESCRIPTION
from tests.pretrain.analysis.runs import values, write_run
from tests.pretrain.conftest import OBJECTIVES

VOID = {"meta", "path", "circle", "br"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;{{ 7*7 }}"


class Reader(HTMLParser):
    """Collects every element with its attributes, its text, and the headings."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.tables: list[list[list[str]]] = []
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def attributes(self, tag: str, name: str) -> list[str]:
        return [found[name] or "" for other, found in self.elements if other == tag and name in found]

    @property
    def ids(self) -> list[str]:
        return [found["id"] or "" for _, found in self.elements if "id" in found]


def page_of(*folders: Path) -> Reader:
    path = folders[0] / "page.html"
    write_page(folders, path)
    return Reader(path)


def test_the_numbers_are_those_of_the_log_and_tensorboard(tmp_path: Path) -> None:
    write_run(tmp_path, 50, 100)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = {value for line in lines for name, value in flat(line) if name not in ("kind", "step")}
    shown = {float(value) for value in page_of(tmp_path).attributes("data", "value")}
    newest = {key.value for key in keys(read_history(tmp_path))}  # except the one that is a ratio of two
    assert shown - newest <= logged and len(shown & logged) > 100
    board = EventAccumulator(str(tmp_path))
    board.Reload()
    drawn = {np.float32(event.value) for tag in board.Tags()["scalars"] for event in board.Scalars(tag)}
    histograms = [event.histogram_value for tag in board.Tags()["histograms"] for event in board.Histograms(tag)]
    drawn |= {np.float32(share) for histogram in histograms for share in histogram.bucket}
    assert {np.float32(value) for value in shown & logged} <= drawn


def test_text_written_by_others_is_escaped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / HOSTILE.replace("/", "|"), 50)
    description = json.loads((folder / DESCRIPTION).read_text())
    description |= {"data": [HOSTILE], "init_from": [HOSTILE], "versions": {HOSTILE: HOSTILE}}
    (folder / DESCRIPTION).write_text(json.dumps(description))
    (folder / "logs").mkdir()
    told = EndRecord(0, HOSTILE, 1, HOSTILE, "error", 1, 3, HOSTILE + "\x1b[31m\u202e")
    write_record(folder, told)
    (folder / "logs" / "rank-0000.log").write_text(f"WARNING: {HOSTILE}\n")
    names = ("time", "step", "first_host", "device", "precision", "code")
    (folder / "starts.jsonl").write_text(json.dumps(dict.fromkeys(names, HOSTILE) | {"processes": [HOSTILE]}))
    gate = {"name": HOSTILE, "value": {"a": HOSTILE}, "demand": [HOSTILE], "passed": HOSTILE}
    (folder / "gates.json").write_text(json.dumps([gate, {}, 3, HOSTILE]))
    with (folder / "metrics.jsonl").open("a") as file:
        text = f"[CLS] [{HOSTILE.split()[0]}->{HOSTILE.split()[0]}]! {HOSTILE}"
        file.write(json.dumps({"kind": "example", "step": 50, "text": text}) + "\n")
    other = write_run(tmp_path / "other", 50)
    for page in (page_of(folder), page_of(folder, other)):
        assert not {"script", "img", "iframe", "object", "link", "base", "form"} & {tag for tag, _ in page.elements}
        assert not [name for _, found in page.elements for name in found if name.startswith("on") or name == "src"]
        assert page.text.count("<script>alert(1)<") >= 10 and "{{ 7*7 }}" in page.text
        assert "\x1b" not in page.source and "\u202e" not in page.source and "\\x1b[31m\\u202e" in page.source


def test_the_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, 50))
    assert {*re.findall(r"\w+://[^\s\"'<]+", page.source)} == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not re.search(r"url\((?!#)|@import", page.source)
    (policy,) = [found["content"] for _, found in page.elements if "http-equiv" in found]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


@pytest.mark.parametrize("runs", [1, 3])
def test_the_page_works_with_keyboard_and_screen_reader(runs: int, tmp_path: Path) -> None:
    page = page_of(*(write_run(tmp_path / str(number), 50, 100) for number in range(runs)))
    tags = [tag for tag, _ in page.elements]
    assert all(tags.count(tag) == 1 for tag in ("h1", "header", "nav", "main", "footer"))
    levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))
    assert len(page.ids) == len({*page.ids})
    links = [*page.attributes("a", "href"), *page.attributes("use", "xlink:href")]
    labels = [label for _, found in page.elements if (label := found.get("aria-labelledby"))]
    assert {link.removeprefix("#") for link in links} | {*labels} <= {*page.ids}
    pictures = [found for tag, found in page.elements if tag == "svg"]
    assert all(
        "aria-hidden" in found or (found.get("role") == "img" and "aria-labelledby" in found) for found in pictures
    )
    assert tags.count("figure") == page.attributes("svg", "role").count("img") > 10
    assert tags.count("details") >= tags.count("figure")
    tables = [found for tag, found in page.elements if tag == "div" and found.get("class") == "wide"]
    assert len(tables) == tags.count("table")
    assert all(found["tabindex"] == "0" and found["role"] == "region" and found["aria-label"] for found in tables)
    assert len(page.attributes("th", "scope")) == tags.count("th")
    assert page.attributes("html", "lang") == ["en"]


def luminance(color: str) -> float:
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_curves_have_the_contrast_required_by_wcag_aa(scheme: str) -> None:
    blocks = re.findall(r":root \{(.*?)\}", (FOLDER / "run_page.css").read_text(), re.DOTALL)
    colors = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[("light", "dark").index(scheme)]))
    grounds = {name: colors[name] for name in ("page", "raised", "good-tint", "bad-tint", "changed")}
    for ground, color in grounds.items():
        for ink in ("ink", "quiet", "link", "good", "bad"):
            assert contrast(colors[ink], color) >= 4.5, (ink, ground)
    for curve in ("c0", "c1"):  # these colors are also used for words
        assert contrast(colors[curve], colors["raised"]) >= 4.5, curve
    for curve in ("c0", "c1", "c2", "c3", "c4", "c5", "neutral"):
        assert contrast(colors[curve], colors["page"]) >= 3, curve


def test_an_example_is_marked_by_replacement_and_suspicion() -> None:
    text = "[CLS] the [cat->dog]! sat [on->##in] a! [mat] [rug]! ! [ x ] ok[b->c]d [SEP]"
    kinds = [(piece.kind, piece.text, piece.drawn) for piece in marked(text) if piece.kind != "plain"]
    assert kinds == [
        ("special", "[CLS]", ""),
        ("caught", "cat", "dog"),
        ("missed", "on", "##in"),
        ("alarm", "a", ""),
        ("kept", "mat", ""),
        ("alarm", "rug", ""),
        ("missed", "b", "c"),
        ("special", "[SEP]", ""),
    ]
    assert marked("") == [Piece("plain", "")]
    started = time.process_time()
    marked("[" * 10_000)
    marked("[a->" * 2_500)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_has_a_page(objective: str, tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, 50, 100, objective=objective))
    assert objective in page.text and "Generator" in page.text
    assert ("Detection accuracy" in page.text) == (objective != "mlm")
    assert ("Estimated and actual loss" in page.text) == objective.startswith("hp_loss")


def test_a_run_that_failed_before_its_first_record_has_a_page(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "logs").mkdir()
    write_record(tmp_path, EndRecord.of(0)._replace(reason="error", exit_code=1, sentence="out of memory"))
    text = " ".join(page_of(tmp_path).text.split())
    assert "Failed, step 0 of 2,000 rank 0 on" in text and "out of memory" in text and "Nothing is logged yet" in text


def test_the_page_of_a_damaged_log_says_so(tmp_path: Path) -> None:
    path = write_run(tmp_path, 50, 100) / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-30] + b"\n\x00\xff\n")
    assert "2 lines of metrics.jsonl damaged or incomplete" in page_of(tmp_path).text


def test_the_diagnosis_comes_first_with_its_measurements(tmp_path: Path) -> None:
    young = page_of(write_run(tmp_path, 50, held_out=False))
    assert 'class="verdict unknown"' in young.source and "too early to judge" in young.text
    record = values("electra", 0) | {"tokens_so_far": 64 * 64 * 1000, "mlm_accuracy": 0.99, "replace_rate": 0.01}
    line = json.dumps({"kind": "train", "step": 1000} | record | {"replaced_share": 0.0015, "p_S": "<b>"})
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    page = page_of(tmp_path)
    assert page.ids.index("verdict") < page.ids.index("section-1") and 'class="verdict sick"' in page.source
    assert "Generator too good".lower() in page.text and "at most 0.9" in page.text
    (tmp_path / "metrics.jsonl").write_text(line.replace('"mlm_accuracy": 0.99', '"mlm_accuracy": "x"') + "\n")
    assert "Not judged: checks of mlm_accuracy: the run's records hold no usable number" in page_of(tmp_path).text


@pytest.mark.parametrize("value", ["0", "-1", "1e308", "1" + 400 * "0", "1e999", "NaN", "null", "true", '"1"', "[1]"])
def test_whatever_the_values_of_a_log_are_there_is_a_page_without_nan(value: str, tmp_path: Path) -> None:
    record = {"kind": "train", "step": 1000} | values("hp_loss", 0) | {"tokens_so_far": 64_000}
    texts = [json.dumps(record | {name: "here"}).replace('"here"', value) for name in record.keys() - {"kind", "step"}]
    write_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("\n".join(texts * 2) + "\n")
    (tmp_path / "starts.jsonl").write_text(f'{{"step": {value}, "zero_stage": {value}}}\n')
    (tmp_path / "gates.json").write_text(f'[{{"name": "AUC", "value": {value}, "demand": {value}}}]')
    page = page_of(tmp_path)
    assert not re.search(r"\bnan\b|Infinity|\binf\b", page.source, re.IGNORECASE)


def test_a_setting_that_differs_from_the_preset_is_shown_beside_it(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, 50, seed=7, batch_size=32))
    changed = page.source.split('class="text changed"')[1].split("</table>")[0]
    assert re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td>', changed) == [
        ("batch_size", "64", "32"),
        ("seed", "0", "7"),
    ]


def test_demands_are_shown_as_met_or_not_met(tmp_path: Path) -> None:
    write_run(tmp_path, 50)
    gates = [{"name": "AUC", "value": "0.7", "demand": "at least 0.65", "passed": passed} for passed in (True, False)]
    (tmp_path / "gates.json").write_text(json.dumps(gates))
    source = page_of(tmp_path).source
    assert source.count('<span class="good">yes</span>') == source.count('<span class="bad">no</span>') == 1
    assert source.index("1 demand not met") < source.index('id="section-1"')


def lines(objective: str, count: int) -> Iterator[bytes]:
    """Generates training records as in a log."""
    bodies = [json.dumps(values(objective, seed))[1:].encode() for seed in range(500)]
    for step, body in enumerate(islice(cycle(bodies), count), 1):
        yield b'{"kind": "train", "step": %d, %b\n' % (step, body)


@pytest.mark.parametrize("records", [20_000, pytest.param(10**6, marks=pytest.mark.long)])
def test_six_long_runs_make_a_page_under_two_megabytes_within_seconds(records: int, tmp_path: Path) -> None:
    """Measured in this process's CPU time, so that it holds on any machine."""
    folders = [write_run(tmp_path / f"run-{number}", 10) for number in range(6)]
    for folder in folders:
        with (folder / "metrics.jsonl").open("wb") as file:
            file.writelines(lines("hp_loss", records if folder == folders[0] else 1000))
    started = time.process_time()
    page = page_of(*folders)
    assert time.process_time() - started < 40
    assert len(page.source.encode()) < 2e6
    assert f"of {records:,} training records" in page.text


def test_a_page_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 50)
    for path in (folder, folder / "run.json" / "page.html", folder / "not there" / "page.html"):
        with pytest.raises(OSError, match=str(path)):
            write_page([folder], path)
