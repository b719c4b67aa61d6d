"""Every file of ds_configs/, and the replacement of each removed one, in a whole run of one process.

In fp16 on a CPU that declares it.

tests/pretrain/engine/test_engine.py uses every file on two ranks.
"""

import json
from pathlib import Path

import pytest

from pretrain.runs.log import read_metrics
from tests.conftest import REPOSITORY
from tests.deepspeed_values import VARIANTS
from tests.pretrain.whole_runs import finished, run_arguments
from tests.reliability.runs import Launch

NAMES = sorted({path.stem for path in (REPOSITORY / "ds_configs").glob("*.json")} | VARIANTS.keys())
STEPS = 12


def run(name: str, shards: Path, folder: Path, launch: Launch) -> str:
    """Output of the run; if the file accumulates, it gets a share of the batch that can be split."""
    script = "bench/gpu/declared.py" if "fp16" in name else "pretrain/run.py"
    overrides = (f"optim.steps={STEPS}", "batch_size=16", "model.dropout=0", "model.attention_dropout=0")
    file, added = VARIANTS.get(name, (name, ()))
    options = (*run_arguments(shards, folder, *overrides, *added)[1:], "--deepspeed_config", f"ds_configs/{file}.json")
    return finished(launch(0, script, *options))


@pytest.fixture(scope="module")
def plain(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory, launch: Launch) -> list[float]:
    """Losses of the discriminator in fp32 without partitioning."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    run("zero0_fp32", shards_folder, folder, launch)
    return values(folder, "discriminator_loss")


def values(folder: Path, name: str) -> list[float]:
    return [record[name] for record in read_metrics(folder, "train")]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name != "zero0_fp32"])
def test_a_shipped_file_and_its_overrides_train_like_the_plainest_one(
    name: str, plain: list[float], shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    run(name, shards_folder, tmp_path / "run", launch)
    (start,) = map(json.loads, (tmp_path / "run" / "starts.jsonl").read_text().splitlines())
    stage, precision, *addition = name.removeprefix("zero").split("_")
    assert start["zero_stage"] == int(stage)
    assert start["precision"] == {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[precision]
    assert start["accumulation_steps"] == (2 if addition == ["accumulate"] else 1)
    losses, skipped = (values(tmp_path / "run", name) for name in ("discriminator_loss", "skipped"))
    assert len(losses) == STEPS
    assert losses[0] == pytest.approx(plain[0], rel=1e-2)
    assert losses[-1] < 0.6 * losses[0]
    if precision == "fp16":  # each step of its search for a loss scale is skipped; then it learns
        assert 0 < skipped[-1] < STEPS - 2 and skipped[-1] == skipped[-3]
    else:
        assert losses == pytest.approx(plain, rel=1e-3 if precision == "fp32" else 0.1)
