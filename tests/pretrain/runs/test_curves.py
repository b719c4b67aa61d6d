"""Claims about the names and groups of curves, and about those in Weights & Biases, written offline."""

import json
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from electra_sampler.foundation.config import ConfigError
from pretrain.runs.curves import CHARTS, GROUPS, Curves, Histogram, TensorBoard, WeightsAndBiases, curve_name, curves_of
from tests.conftest import REPOSITORY
from tests.pretrain.analysis.runs import write_run


def test_every_metric_of_the_reference_has_a_group_and_no_other_has_one_and_there_are_a_dozen() -> None:
    page = (REPOSITORY / "docs" / "reference" / "run_folder.md").read_text()
    table = page.split("| name | what it is |")[1].split("\n\n")[0]
    named = " ".join(row.split(" | ")[0] for row in table.splitlines())
    names = set(re.findall(r"`([a-z]\w+)", named))
    assert len(names) > 30 and names == GROUPS.keys() - {"logit", "log_ratio", "example"}  # no numbers
    assert len(set(GROUPS.values())) == 12 and CHARTS.keys() <= set(GROUPS.values())


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


def written(folder: Path, *curves: Curves, first: int = 1) -> EventAccumulator:
    """Writes one step per argument, and reads the folder."""
    writer = TensorBoard(folder, first)
    for step, of_step in enumerate(curves, first):
        writer.write(step, of_step)
    writer.close()
    return EventAccumulator(str(folder), size_guidance={"tensors": 0, "histograms": 0}).Reload()


def test_a_run_has_the_name_of_its_folder(tmp_path: Path) -> None:
    for name in ("base", "small"):
        written(tmp_path / "runs" / name, Curves({"Loss/generator_loss/train": 1.0}))
    boards = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "runs")).Reload()
    assert sorted(boards.Runs()) == ["base", "small"]


def test_a_resumed_run_overwrites_lost_curves(tmp_path: Path) -> None:
    written(tmp_path, *[Curves({"Loss/generator_loss/train": 1.0})] * 4)
    time.sleep(1)  # files are read in the order of their names, which begin with the second of their start
    board = written(tmp_path, *[Curves({"Loss/generator_loss/train": 3.0})] * 2, first=3)
    seen = [(event.step, event.value) for event in board.Scalars("Loss/generator_loss/train")]
    assert seen == [(1, 1.0), (2, 1.0), (3, 3.0), (4, 3.0)]


def test_training_and_held_out_text_are_on_one_chart(tmp_path: Path) -> None:
    board = written(tmp_path, Curves({"Loss/generator_loss/train": 1.0}))
    (event,) = board.Tensors("custom_scalars__config__")
    layout = Layout.FromString(event.tensor_proto.string_val[0])
    charts = {(group.title, chart.title): [*chart.multiline.tag] for group in layout.category for chart in group.chart}
    paths = [name for charts in CHARTS.values() for chart in charts for name in chart.split()]
    for path in (*paths, "entropy/p_S", "estimate_correlation/all"):
        found = [
            [title for title, (pattern,) in charts.items() if re.match(pattern, curve_name(kind, path))]
            for kind in ("train", "held_out")
        ]
        assert found[0] == found[1] and len(found[0]) == 1, path
    (shown,) = (pattern for (_, title), (pattern,) in charts.items() if title == "sampler_loss")
    assert not re.match(shown, "Loss/generator_loss/train")


def test_a_histogram_is_shown_as_it_was_counted(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=1000).clip(-1.99, 1.99)
    counts, edges = np.histogram(values, bins=40, range=(-2, 2))
    board = written(tmp_path, Curves(histograms={"Detection/logit/train": Histogram(edges.tolist(), counts.tolist())}))
    (event,) = board.Histograms("Detection/logit/train")
    seen = event.histogram_value
    assert event.step == 1 and seen.num == 1000
    assert [*seen.bucket_limit] == pytest.approx(edges[1:]) and [*seen.bucket] == counts.tolist()
    assert seen.min == pytest.approx(values.min(), abs=0.1) and seen.max == pytest.approx(values.max(), abs=0.1)
    assert seen.sum == pytest.approx(values.sum(), abs=50)  # half a bin each
    assert seen.sum_squares == pytest.approx((values**2).sum(), rel=0.01)


def test_a_text_is_shown_literally(tmp_path: Path) -> None:
    text = "[CLS] [cat->dog]! * _ # " + "unable " * 40 + "[SEP]"
    (event,) = written(tmp_path, Curves(texts={"Example": text})).Tensors("Example/text_summary")
    first, *lines, last = event.tensor_proto.string_val[0].decode().split("\n")
    assert first == last == "```"
    assert max(map(len, lines)) <= 100 and " ".join(lines) == text


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Resets W&B's settings, which it reads from the environment once per process."""
    wandb = pytest.importorskip("wandb", reason="W&B is optional: pip install -e .[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    wandb.teardown()


BLOCK, HEADER = 32768, 7
FULL, LAST = 1, 4


def records(folder: Path) -> list[Any]:
    """Records that would be sent, from a LevelDB log: records may be split into fragments, each within a block."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    content, place, found, begun = path.read_bytes(), HEADER, [], b""
    while place < len(content):
        if BLOCK - place % BLOCK < HEADER:  # no room for a header, so the rest is padding
            place += BLOCK - place % BLOCK
        length, kind = struct.unpack_from("<HB", content, place + 4)  # after a checksum
        begun += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (FULL, LAST):
            found.append(Record.FromString(begun))
            begun = b""
    return found


def test_numbers_histograms_and_examples_arrive_at_weights_and_biases_with_their_steps(
    tmp_path: Path, anew: None
) -> None:
    folder = write_run(tmp_path / "base")
    writer = WeightsAndBiases(folder, 1)
    counted = Histogram([0.0, 0.5, 1.0], [0.25, 0.75])
    writer.write(10, Curves({"Loss/generator_loss/train": 2.5}, {"Sampling/max_probability/p_G/train": counted}))
    writer.write(10, Curves(texts={"Example/example/train": "[CLS] <cat>"}))
    writer.write(20, Curves({"Loss/generator_loss/train": 1.5, "Loss/generator_loss/held_out": float("nan")}))
    writer.close()
    sent = records(folder)
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in sent
        if record.HasField("history")
    ]
    assert [(row["_step"], row["Loss/generator_loss/train"]) for row in rows] == [(10, 2.5), (20, 1.5)]
    drawn = {key.split("/")[-1]: value for key, value in rows[0].items() if key.startswith("Sampling/")}
    assert drawn == {"_type": "histogram", "bins": [0.0, 0.5, 1.0], "values": [0.25, 0.75]}
    (text,) = folder.glob("wandb/offline-run-*/files/media/html/**/*.html")
    assert "[CLS] &lt;cat&gt;" in text.read_text()
    (run,) = (record.run for record in sent if record.HasField("run"))
    assert run.display_name == "base from step 1" and run.run_group == "base"
    settings = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert settings["run"]["objective"]["name"] == "hp_loss"


def test_a_missing_key_of_weights_and_biases_is_reported_with_how_to_give_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: None
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"^log_to: got wandb, which does not start \(.*; run `wandb login`"):
        WeightsAndBiases(write_run(tmp_path / "base"), 1)
