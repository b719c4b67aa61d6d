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

from pretrain.data.batches import HELD_OUT_SEED, Batch, BatchPlan, held_out_batches
from pretrain.data.shards import Shards, open_held_out
from pretrain.engine.checkpoint import newest_valid
from pretrain.engine.engine import Engine
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import start_processes
from pretrain.job.watchdog import Watchdog
from pretrain.method.electra import Electra
from pretrain.method.objective import Output
from pretrain.planning.estimates import Machine
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import make_plan
from pretrain.runs.curves import curve_name, curves_of
from pretrain.runs.folder import CHECKPOINTS, data_of, read_run
from pretrain.runs.log import read_metrics
from pretrain.runs.models import load_checkpoint
from pretrain.training.start import build_training, measured_machine
from pretrain.training.telemetry import OwnTime, code_version, example, record_start, speed, work_done
from tests.conftest import REPOSITORY, needs
from tests.pretrain.conftest import VOCABULARY, new_model, options
from tests.pretrain.engine import engine_worker as worker

STEPS = 6
HANG_TIMEOUT = 120.0
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
        plan, world = make_plan(RunOptions.from_values(options)), start_processes()
        with Watchdog(world, HANG_TIMEOUT, plan.folder) as watchdog:
            assert build_training(plan, measured_machine(plan, world), world, watchdog).train() == 0
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
    board = EventAccumulator(str(folder), size_guidance={"tensors": 0, "histograms": 0})
    board.Reload()
    return board


def test_watching_does_not_change_training_by_a_bit(run: Run, watched: Path) -> None:
    alone = run("hp_loss", "log_every=100", "histogram_every=100")
    assert [record["step"] for record in read_metrics(alone, "train")] == [STEPS]
    for step in (3, STEPS):
        ours, theirs = (
            load_file(folder / f"checkpoints/step-{step:08}/weights.safetensors") for folder in (watched, alone)
        )
        assert all(ours[name].equal(theirs[name]) for name in ours | theirs)
    for ours, theirs in zip(*(read_metrics(folder, "held_out") for folder in (watched, alone)), strict=True):
        assert ours == theirs
    seen, silent = read_metrics(watched, "train"), read_metrics(alone, "train")[0]
    tokens = sum(record["tokens"] for record in seen)
    assert tokens == silent["tokens"]
    mean = sum(record["discriminator_loss"] * record["tokens"] for record in seen) / tokens
    assert silent["discriminator_loss"] == pytest.approx(mean, rel=1e-12)


def test_every_number_in_the_file_is_in_tensorboard_under_its_name(watched: Path) -> None:
    board, seen = board_of(watched), set()
    for kind in ("train", "held_out"):
        for record in read_metrics(watched, kind):
            values = {name: part for name, part in record.items() if name not in ("kind", "step")}
            scalars, histograms, _ = curves_of(kind, values)
            for name, value in scalars.items():
                at_step = {event.step: event.value for event in board.Scalars(name)}
                assert at_step[record["step"]] == pytest.approx(value, rel=1e-6)
            for name, histogram in histograms.items():
                shares = {event.step: list(event.histogram_value.bucket) for event in board.Histograms(name)}
                assert [share for share in shares[record["step"]] if share] == [s for s in histogram.counts if s]
            seen |= scalars.keys()
    assert set(board.Tags()["scalars"]) == seen


def test_every_number_of_the_file_is_explained_in_the_reference(watched: Path) -> None:
    table = (REPOSITORY / "docs" / "reference" / "run_folder.md").read_text()
    names = {name for kind in ("train", "held_out") for record in read_metrics(watched, kind) for name in record}
    assert {"gradient_norm", "epoch"} <= names
    assert not {name for name in names - {"kind", "step", "tokens"} if f"`{name}" not in table}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_is_the_peak(watched: Path) -> None:
    records = read_metrics(watched, "train")
    peaks = [record["gpu_memory_gb"] for record in records]
    assert 0 < peaks[0] <= peaks[-1] == torch.cuda.max_memory_allocated() / 1e9


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_its_memory_is_not_reported(watched: Path) -> None:
    assert not [record for record in read_metrics(watched, "train") if "gpu_memory_gb" in record]


def test_each_histogram_is_in_tensorboard_at_the_steps_when_it_is_due(watched: Path) -> None:
    board = board_of(watched)
    due = {curve_name("train", name): [2, 4, 6] for name in ("log_ratio", "logit/original", "logit/replaced")}
    for name in ("max_probability/p_G", "max_probability/p_S"):
        due |= {curve_name("train", name): [*range(1, STEPS + 1)], curve_name("held_out", name): [3, 6]}
    assert {name: [event.step for event in board.Histograms(name)] for name in board.Tags()["histograms"]} == due


def test_held_out_accuracy_under_p_G_is_that_of_the_same_weights_as_an_ELECTRA(watched: Path) -> None:
    record, held_out = read_metrics(watched, "held_out")[-1], open_held_out(*data_of(read_run(watched)))
    assert held_out is not None
    checkpoint = newest_valid(watched / CHECKPOINTS)
    assert checkpoint is not None
    model: Any = load_checkpoint(read_run(watched), checkpoint).eval()
    batches = held_out_batches(held_out, 8, BatchPlan(8, 4, 1, 0), HELD_OUT_SEED)
    seen = [(batch, model(batch, from_p_G=True)) for batch in batches]
    right = torch.cat(
        [((output.detected.d_BL > 0) == output.detected.replaced_BL)[batch.attention_mask_BL] for batch, output in seen]
    )
    masked = torch.cat([batch.masked_BL[batch.attention_mask_BL].bool() for batch, _ in seen])
    assert record["accuracy_all_under"] == {"p_G": right.double().mean().item(), "p_S": record["accuracy_all"]}
    assert record["accuracy_masked_under"]["p_G"] == pytest.approx(right[masked].double().mean().item(), rel=1e-12)


def test_an_example_is_decoded_with_the_runs_tokenizer(watched: Path) -> None:
    examples = read_metrics(watched, "example")
    assert [record["step"] for record in examples] == [2, 4, 6]
    assert all(record["text"].startswith("[CLS] ") and "->" in record["text"] for record in examples)
    assert len({record["text"] for record in examples}) == 3
    board = board_of(watched)
    assert [event.step for event in board.Tensors("Example/example/train/text_summary")] == [2, 4, 6]


def test_the_histogram_is_of_the_step_that_the_line_reports(watched: Path) -> None:
    """It covers both micro-batches of that step."""
    events = [board_of(watched).Histograms(f"Detection/logit/{name}/train")[0] for name in ("original", "replaced")]
    tokens = {record["step"]: record["tokens"] for record in read_metrics(watched, "train")}
    assert sum(event.histogram_value.num for event in events) == tokens[2]


@pytest.fixture
def own_time() -> OwnTime:
    model = nn.Linear(2, 2)
    config = worker.resolved_config("zero1_fp32", world_size=1)
    return OwnTime(Engine(model, parameter_groups(model, 0.01), config, start_processes()))


def test_waiting_for_data_and_computing_count_but_waiting_for_other_ranks_does_not(own_time: OwnTime) -> None:
    def slow_data(steps: int) -> object:
        for step in range(steps):
            time.sleep(0.1)
            yield step

    started = time.monotonic()
    for _ in own_time.reading(slow_data(2)):  # type: ignore[arg-type]
        with own_time.computing():
            time.sleep(0.2)
        time.sleep(0.4)
    values = own_time.end()
    assert values["slowest_rank"] == 0
    assert values["slowest_rank_seconds"] == values["median_rank_seconds"]
    assert 0.3 <= values["slowest_rank_seconds"] <= (time.monotonic() - started) / 2 - 0.4


def test_each_reading_starts_a_new_measurement(own_time: OwnTime) -> None:
    for _ in own_time.reading(range(1)):
        with own_time.computing():
            time.sleep(0.3)
    own_time.end()
    started = time.monotonic()
    for _ in own_time.reading(range(1)):
        with own_time.computing():
            torch.ones(2)
    assert own_time.end()["slowest_rank_seconds"] <= time.monotonic() - started


def test_every_start_is_recorded_with_machine_precision_code_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("SECRET", "hidden")
    model = nn.Linear(2, 2)
    config = worker.resolved_config("zero1_fp32", world_size=1)
    engine = Engine(model, parameter_groups(model, 0.01), config, start_processes())
    for step in (0, 40):
        record_start(tmp_path, engine, step, Machine("", 1.0, "", 1.0, products=2e12, fp32_products=3e12))
    records = [json.loads(line) for line in (tmp_path / "starts.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 40]
    assert (records[0]["precision"], records[0]["zero_stage"], records[0]["processes"]) == ("float32", 1, 1)
    assert (records[0]["matrix_peak_tflops"], records[0]["fp32_peak_tflops"]) == (2.0, 3.0)
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


def text(batch: Batch, output: Output, suspected: list[int]) -> str:
    """[CLS] cat un ##able dog [SEP] [PAD]: cat became dog, dog was drawn again; the third slot is invalid."""
    ids_BL = torch.tensor([[2, 7, 5, 6, 8, 3, 0]])
    shown = batch._replace(
        input_ids_BL=ids_BL,
        attention_mask_BL=ids_BL > 0,
        masked_positions_BK=torch.tensor([[1, 4, 0]]),
        masked_valid_BK=torch.tensor([[True, True, False]]),
    )
    d_BL = torch.tensor([[1.0 if position in suspected else -1.0 for position in range(7)]])
    draw = output.detected.draw._replace(tokens_BK=torch.tensor([[8, 8, 7]]))
    return example(shown, output._replace(detected=output.detected._replace(draw=draw, d_BL=d_BL)), WORDS)


def test_replacements_are_marked_and_word_pieces_joined(batch: Batch, make_electra: Callable[..., Electra]) -> None:
    assert text(batch, make_electra()(batch), suspected=[]) == "[CLS] [cat->dog] unable [dog] [SEP]"


def test_suspected_tokens_are_marked_anywhere(batch: Batch, make_electra: Callable[..., Electra]) -> None:
    assert text(batch, make_electra()(batch), suspected=[1, 3, 6]) == "[CLS] [cat->dog]! unable! [dog] [SEP]"


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
    done = work_done(plan, 110)
    assert done["tokens_so_far"] == pytest.approx(110 * plan.run.batch_size * plan.shards.mixture.mean_length, abs=1)
    assert done["flops_so_far"] == pytest.approx(done["tokens_so_far"] * plan.sizes.flops, rel=1e-4)


def test_position_in_the_data_is_counted_in_epochs_of_each_folder(shards_folder: Path, tmp_path: Path) -> None:
    plan = make_plan(options(shards_folder, tmp_path))
    size = len(plan.shards)
    values = work_done(plan, 100)
    assert values["epoch"] == pytest.approx(100 * plan.run.batch_size / size)
    assert "epoch_of_folder" not in values

    held_out = shards_folder / "held_out"  # another folder built in the same way
    mixed = plan._replace(shards=Shards(shards_folder, held_out, weights=(1, 3)))
    values = work_done(mixed, 100)
    index, _ = mixed.shards.mixture.shuffled(np.arange(100 * plan.run.batch_size), seed=0)
    read = [np.sum(index < size) / size, np.sum(index >= size) / len(Shards(held_out))]
    assert values["epoch_of_folder"] == pytest.approx(read, rel=1e-3)
    assert values["epoch"] == max(values["epoch_of_folder"])
