"""Claims about a run's reports, from whole runs in this process, read by TensorBoard's own reader."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from pretrain.data.batches import Batch
from pretrain.data.shards import Shards
from pretrain.engine.engine import Engine
from pretrain.method.electra import Electra
from pretrain.planning.estimates import Machine
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import make_plan
from pretrain.runs.curves import curve_name
from pretrain.runs.log import read_metrics
from pretrain.training.telemetry import OwnTime, code_version, example, record_start, speed, work_done
from tests.conftest import REPOSITORY, needs
from tests.pretrain.conftest import VOCABULARY, new_model, options
from tests.pretrain.training.conftest import built, make_engine

STEPS = 6

Run = Callable[..., Path]


@pytest.fixture(scope="module")
def run(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trains six steps of two micro-batches each, with dropout."""

    def start(objective: str, *overrides: str) -> Path:
        folder = tmp_path_factory.mktemp("reports")
        options = {
            "preset": "tiny",
            "data": [str(shards_folder)],
            "output": str(folder / "run"),
            "objective": objective,
            "deepspeed_config": str(REPOSITORY / "ds_configs/zero1_fp32.json"),
            "set": [
                *(f"optim.steps={STEPS}", "optim.warmup_steps=2", "batch_size=8", "model.dropout=0.1"),
                *("checkpoint_every=3", "evaluate_every=3", "evaluate_sequences=8", "log_every=1", *overrides),
                *("deepspeed.zero_optimization.stage=2", "deepspeed.train_micro_batch_size_per_gpu=4"),
            ],
        }
        with built(RunOptions.from_values(options)) as training:
            assert training.train() == 0
        return folder / "run"

    return start


@pytest.fixture(scope="module")
def watched(run: Run) -> Path:
    return run("hp_loss", "histogram_every=2")


def test_distributions_and_histograms_cover_only_their_own_step(run: Run, watched: Path) -> None:
    """The values are bitwise equal whether or not `histogram_every` is a divisor of `log_every`."""
    crossed = run("hp_loss", "log_every=3", "histogram_every=2")
    expected = {record["step"]: record for record in read_metrics(watched, "train")}
    records = read_metrics(crossed, "train")
    assert [record["step"] for record in records] == [3, 6]
    for record in records:
        for name in ("max_probability", "entropy", "auc_all", "ratio_p99", "estimate_correlation"):
            assert record[name] == expected[record["step"]][name], name
    ours, theirs = (
        {event.step: list(event.histogram_value.bucket) for event in board.Histograms("Detection/logit/original/train")}
        for board in (board_of(crossed), board_of(watched))
    )
    assert ours == theirs


def board_of(folder: Path) -> Any:
    return EventAccumulator(str(folder), size_guidance={"tensors": 0, "histograms": 0}).Reload()


def test_watching_does_not_change_training_by_a_bit(run: Run, watched: Path) -> None:
    alone = run("hp_loss", "log_every=100", "histogram_every=100")
    assert [record["step"] for record in read_metrics(alone, "train")] == [STEPS]
    for step in (3, STEPS):
        ours, theirs = (
            load_file(folder / f"checkpoints/step-{step:08}/weights.safetensors") for folder in (watched, alone)
        )
        assert all(ours[name].equal(theirs[name]) for name in ours | theirs)
    assert read_metrics(watched, "held_out") == read_metrics(alone, "held_out")
    seen, silent = read_metrics(watched, "train"), read_metrics(alone, "train")[0]
    tokens = sum(record["tokens"] for record in seen)
    assert tokens == silent["tokens"]
    mean = sum(record["discriminator_loss"] * record["tokens"] for record in seen) / tokens
    assert silent["discriminator_loss"] == pytest.approx(mean, rel=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_is_the_peak(watched: Path) -> None:
    records = read_metrics(watched, "train")
    peaks = [record["gpu_memory_gb"] for record in records]
    assert 0 < peaks[0] <= peaks[-1] == torch.cuda.max_memory_allocated() / 1e9


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_its_memory_is_not_reported(watched: Path) -> None:
    assert not [record for record in read_metrics(watched, "train") if "gpu_memory_gb" in record]


def test_each_histogram_is_in_tensorboard_at_the_steps_when_it_is_due_and_of_that_step(watched: Path) -> None:
    """One of logits covers both micro-batches of its step."""
    board = board_of(watched)
    due = {curve_name("train", name): [2, 4, 6] for name in ("log_ratio", "logit/original", "logit/replaced")}
    for name in ("max_probability/p_G", "max_probability/p_S"):
        due |= {curve_name("train", name): [*range(1, STEPS + 1)], curve_name("held_out", name): [3, 6]}
    assert {name: [event.step for event in board.Histograms(name)] for name in board.Tags()["histograms"]} == due
    events = [board.Histograms(f"Detection/logit/{name}/train")[0] for name in ("original", "replaced")]
    tokens = {record["step"]: record["tokens"] for record in read_metrics(watched, "train")}
    assert sum(event.histogram_value.num for event in events) == tokens[2]


def test_an_example_is_decoded_with_the_runs_tokenizer(watched: Path) -> None:
    examples = read_metrics(watched, "example")
    assert [record["step"] for record in examples] == [2, 4, 6]
    assert all(record["text"].startswith("[CLS] ") and "->" in record["text"] for record in examples)
    assert len({record["text"] for record in examples}) == 3


@pytest.fixture(scope="module")
def engine() -> Engine:
    return make_engine(nn.Linear(2, 2))


def test_waiting_for_data_and_computing_count_but_waiting_for_other_ranks_does_not_and_each_reading_starts_anew(
    engine: Engine,
) -> None:
    own_time = OwnTime(engine)
    for steps in (2, 1):
        started = time.monotonic()
        for _ in own_time.reading(map(time.sleep, [0.1] * steps)):  # each item takes as long
            with own_time.computing():
                time.sleep(0.2)
            time.sleep(0.4)
        values = own_time.end()
        assert values["slowest_rank"] == 0
        assert values["slowest_rank_seconds"] == values["median_rank_seconds"]
        assert 0.3 <= values["slowest_rank_seconds"] <= (time.monotonic() - started) / steps - 0.4


def test_every_start_is_recorded_with_machine_precision_code_and_environment(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("SECRET", "hidden")
    for step in (0, 40):
        record_start(tmp_path, engine, step, Machine("", 1.0, "", 1.0, products=2e12, fp32_products=3e12))
    records = [json.loads(line) for line in (tmp_path / "starts.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 40]
    known = {
        "precision": "float32",
        "zero_stage": 0,
        "processes": 1,
        "matrix_peak_tflops": 2.0,
        "fp32_peak_tflops": 3.0,
    }
    assert known.items() <= records[0].items()
    assert records[0]["environment"]["NCCL_DEBUG"] == "WARN"
    assert "hidden" not in json.dumps(records)


def test_the_code_is_identified_by_its_commit_and_uncommitted_changes_are_marked(tmp_path: Path) -> None:
    needs("git")

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        command = ["git", *identity, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert code_version(tmp_path) is None
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "One")
    assert code_version(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert code_version(tmp_path) == git("rev-parse", "HEAD") + " + changes"
    (tmp_path / "site-packages").mkdir()
    assert code_version(tmp_path / "site-packages") is None, "an environment inside another repository"


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##able", "cat", "dog"]


@pytest.mark.parametrize(
    ("suspected", "text"),
    [([], "[CLS] [cat->dog] unable [dog] [SEP]"), ([1, 3, 6], "[CLS] [cat->dog]! unable! [dog] [SEP]")],
)
def test_replacements_are_marked_word_pieces_joined_and_suspected_tokens_marked_anywhere(
    suspected: list[int], text: str, batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    """[CLS] cat un ##able dog [SEP] [PAD]: cat became dog, dog was drawn again; the third slot is invalid."""
    output = make_electra()(batch)
    ids_BL = torch.tensor([[2, 7, 5, 6, 8, 3, 0]])
    shown = batch._replace(
        input_ids_BL=ids_BL,
        attention_mask_BL=ids_BL > 0,
        masked_positions_BK=torch.tensor([[1, 4, 0]]),
        masked_valid_BK=torch.tensor([[True, True, False]]),
    )
    d_BL = torch.tensor([[1.0 if position in suspected else -1.0 for position in range(7)]])
    draw = output.detected.draw._replace(tokens_BK=torch.tensor([[8, 8, 7]]))
    assert example(shown, output._replace(detected=output.detected._replace(draw=draw, d_BL=d_BL)), WORDS) == text


def test_a_masked_language_model_shows_its_most_likely_tokens(batch: Batch) -> None:
    output = new_model("mlm")(batch)
    words = [f"w{number}" for number in range(VOCABULARY)]
    shown = example(batch, output, words).split()
    assert len(shown) == batch.attention_mask_BL[0].sum() and "!" not in "".join(shown)
    for position, valid, token in zip(
        batch.masked_positions_BK[0].tolist(), batch.masked_valid_BK[0], output.top_BK[0].tolist(), strict=True
    ):
        assert not valid or f"w{token}]" in shown[position]


def test_rates_and_sums_are_those_of_the_work_done(shards_folder: Path, tmp_path: Path) -> None:
    plan = make_plan(options(shards_folder, tmp_path))
    values = speed(plan, steps=10, tokens=20_000, seconds=4, peak=1e12)
    assert values["tokens_per_second"] == 5_000
    assert values["samples_per_second"] == pytest.approx(10 * plan.run.batch_size / 4)
    assert values["tflops"] == pytest.approx(5_000 * plan.sizes.flops / 1e12)
    assert values["peak_share"] == pytest.approx(values["tflops"])
    done: dict[str, Any] = work_done(plan, 110)
    assert done["tokens_so_far"] == pytest.approx(110 * plan.run.batch_size * plan.shards.mixture.mean_length, abs=1)
    assert done["flops_so_far"] == pytest.approx(done["tokens_so_far"] * plan.sizes.flops, rel=1e-4)
    assert done["epoch"] == pytest.approx(110 * plan.run.batch_size / len(plan.shards))
    assert "epoch_of_folder" not in done


def test_position_in_the_data_is_counted_in_epochs_of_each_folder(shards_folder: Path, tmp_path: Path) -> None:
    plan = make_plan(options(shards_folder, tmp_path))
    size, held_out = len(plan.shards), shards_folder / "held_out"  # another folder built in the same way
    mixed = plan._replace(shards=Shards(shards_folder, held_out, weights=(1, 3)))
    values: dict[str, Any] = work_done(mixed, 100)
    index, _ = mixed.shards.mixture.shuffled(np.arange(100 * plan.run.batch_size), seed=0)
    read = [np.sum(index < size) / size, np.sum(index >= size) / len(Shards(held_out))]
    assert values["epoch_of_folder"] == pytest.approx(read, rel=1e-3)
    assert values["epoch"] == max(values["epoch_of_folder"])
