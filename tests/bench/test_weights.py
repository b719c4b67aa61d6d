"""Claims about the first weights: what fifteen minutes of a rented GPU run, rehearsed on a CPU from text to a score."""

import lzma
import os
import pydoc_data.topics
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModel

from finetune.running.records import read_records
from pretrain.runs.log import read_metrics
from tests.conftest import REPOSITORY
from tests.finetune.conftest import cola_rows

SCRIPTS = "bench/gpu/weights"


@pytest.mark.long
def test_the_calls_leave_a_model_and_its_control_that_score(shards_folder: Path, tmp_path: Path) -> None:
    """Training is stopped by SIGTERM when its time is over; weights come back in parts, without Adam's state."""
    bundle, out, runs = tmp_path / "bundle", tmp_path / "out", tmp_path / "runs"
    for folder in (bundle / "text", out, runs):
        folder.mkdir(parents=True)
    for number, topic in enumerate(sorted(pydoc_data.topics.topics.values(), key=len)[-6:]):
        (bundle / "text" / f"{number}.xz").write_bytes(lzma.compress(topic.encode()))
    (bundle / "vocab.txt").write_bytes((shards_folder / "tokenizer" / "vocab.txt").read_bytes())
    own = {"ROOT": tmp_path / "root", "BUNDLE": bundle, "OUT": out, "DEVICE": "cpu", "PRESET": "tiny", "BATCH": 8}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {name: str(value) for name, value in own.items()} | {"SECONDS_": "9", "PATH": path}

    def call(*command: str | Path) -> None:
        subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, timeout=600)

    call("bash", f"{SCRIPTS}/first.sh")
    call("bash", f"{SCRIPTS}/second.sh")
    call("bash", f"{SCRIPTS}/train.sh", "p_G", "ELECTRA", "objective.gamma=1")
    for name in ("hp_loss", "p_G"):
        parts = sorted(out.glob(f"{name}.tar.*"))
        subprocess.run(["tar", "-x", "-C", runs], input=b"".join(map(Path.read_bytes, parts)), check=True)
        assert read_metrics(runs / name, "train")[-1]["step"] > 0
        call(sys.executable, "pretrain/export.py", runs / name, tmp_path / f"{name}-exported")
    exported = tmp_path / "hp_loss-exported"
    assert AutoModel.from_pretrained(exported, trust_remote_code=True).config.hidden_size == 128

    tasks = tmp_path / "glue" / "CoLA"
    tasks.mkdir(parents=True)
    for split, seed in (("train", 1), ("dev", 2)):
        (tasks / f"{split}.tsv").write_text(cola_rows(64, seed))
    glue = ("finetune/run_glue.py", "--task", "CoLA", "--data_dir", tasks.parent, "--epochs", "1", "--seeds", "1")
    call(sys.executable, *glue, "--model", exported, "--output", tmp_path / "scores")
    assert len(read_records(tmp_path / "scores" / "results.jsonl")) == 1
