"""Claims about curves in Weights & Biases, written offline and read from its file.

Skipped if the package is missing; `pip install -e .[wandb]` installs it.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from pretrain.runs.curves import Curves, Histogram
from tests.pretrain.analysis.runs import write_run

wandb = pytest.importorskip("wandb", reason="W&B is optional: pip install -e .[wandb]")

from wandb.proto.wandb_internal_pb2 import Record  # noqa: E402

from pretrain.runs.curves import WeightsAndBiases  # noqa: E402


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Resets W&B's settings, which it reads from the environment once per process."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    wandb.teardown()


BLOCK, HEADER = 32768, 7
FULL, LAST = 1, 4


def records(folder: Path) -> list[Record]:
    """Records that would be sent, from a LevelDB log: records may be split into fragments, each within a block."""
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


def test_numbers_histograms_and_examples_arrive_at_their_steps(tmp_path: Path) -> None:
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


def test_a_missing_key_is_reported_with_how_to_give_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"^log_to: got wandb, which does not start \(.*; run `wandb login`"):
        WeightsAndBiases(write_run(tmp_path / "base"), 1)
