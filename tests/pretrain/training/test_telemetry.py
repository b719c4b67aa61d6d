"""Claims about a run's reports, from whole runs in this process, read by TensorBoard's own reader."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pretrain.job.processes import start_processes
from pretrain.job.watchdog import Watchdog
from pretrain.method.registry import BUILT_IN, load_objective
from pretrain.training.assembly import build_training, measured_machine
from pretrain.training.curves import curve_name, curves_of, flat
from pretrain.training.options import RunOptions
from pretrain.training.plan import make_plan
from pretrain.training.run_log import read_records
from pretrain.training.train import train
from tests.conftest import REPOSITORY
from tests.pretrain.conftest import SAMPLERS

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
            assert train(build_training(plan, measured_machine(plan, world), world, watchdog)) == 0
        return folder / "run"

    return start


@pytest.fixture(scope="module")
def watched(run: Run) -> Path:
    return run("hp_loss", "histogram_every=2")


def test_distributions_and_histograms_cover_only_their_own_step(run: Run, watched: Path) -> None:
    """The values are bitwise equal whether or not `histogram_every` is a divisor of `log_every`."""
    crossed = run("hp_loss", "log_every=3", "histogram_every=2")
    expected = {record["step"]: record for record in read_records(watched, "train")}
    records = read_records(crossed, "train")
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
    assert [record["step"] for record in read_records(alone, "train")] == [STEPS]
    for step in (3, STEPS):
        ours, theirs = (
            load_file(folder / f"checkpoints/step-{step:08}/weights.safetensors") for folder in (watched, alone)
        )
        assert all(ours[name].equal(theirs[name]) for name in ours | theirs)
    for ours, theirs in zip(*(read_records(folder, "held_out") for folder in (watched, alone)), strict=True):
        assert ours == theirs
    seen, silent = read_records(watched, "train"), read_records(alone, "train")[0]
    tokens = sum(record["tokens"] for record in seen)
    assert tokens == silent["tokens"]
    mean = sum(record["discriminator_loss"] * record["tokens"] for record in seen) / tokens
    assert silent["discriminator_loss"] == pytest.approx(mean, rel=1e-12)


def test_every_number_in_the_file_is_in_tensorboard_under_its_name(watched: Path) -> None:
    board, seen = board_of(watched), set()
    for kind in ("train", "held_out"):
        for record in read_records(watched, kind):
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
    names = {name for kind in ("train", "held_out") for record in read_records(watched, kind) for name in record}
    assert {"gradient_norm", "epoch"} <= names
    assert not {name for name in names - {"kind", "step", "tokens"} if f"`{name}" not in table}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_is_the_peak(watched: Path) -> None:
    records = read_records(watched, "train")
    peaks = [record["gpu_memory_gb"] for record in records]
    assert 0 < peaks[0] <= peaks[-1] == torch.cuda.max_memory_allocated() / 1e9


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_its_memory_is_not_reported(watched: Path) -> None:
    assert not [record for record in read_records(watched, "train") if "gpu_memory_gb" in record]


NAMES = {
    "generator": ["generator_loss", "mlm_loss", "mlm_accuracy", "entropy/p_G", "max_probability/p_G/9"],
    "discriminator": [
        *("discriminator_loss", "discriminator_entropy", "replaced_share", "replace_rate", "precision", "recall"),
        *("accuracy_masked", "accuracy_unmasked", "accuracy_all", "auc_all", "auc_masked"),
        *("entropy/p_S", "max_probability/p_S/9", "ratio_p1", "ratio_p50", "ratio_p99", "sampler_loss"),
    ],
    "estimate": [f"estimate_correlation/{name}" for name in ("original", "replaced", "all")],
}
NEEDS_AN_ORIGINAL = {"auc_masked", "estimate_correlation/original"}
"""Metrics left out if no original token was drawn, which may happen this early."""


@pytest.mark.parametrize("given", (*BUILT_IN, *SAMPLERS))
def test_every_objective_reports_the_quantities_it_has(given: str, run: Run, watched: Path) -> None:
    objective = load_objective(given)
    folder = watched if given == "hp_loss" else run(given, "histogram_every=2")
    groups = {"mlm": ["generator"]}.get(objective, list(NAMES)[: 2 + objective.startswith("hp_loss")])
    for kind in ("train", "held_out"):
        last = dict(flat({k: v for k, v in read_records(folder, kind)[-1].items() if k != "kind"}))
        for group, names in NAMES.items():
            found = {name for name in names if name in last}
            assert found == set() if group not in groups else found >= set(names) - NEEDS_AN_ORIGINAL
    board = board_of(folder)
    sampled = ("p_G",) if objective == "mlm" else ("p_G", "p_S")
    counted = () if objective == "mlm" else ("log_ratio", "logit/original", "logit/replaced")
    due = {curve_name("train", name): [2, 4, 6] for name in counted}
    due |= {curve_name("train", f"max_probability/{name}"): [*range(1, STEPS + 1)] for name in sampled}
    due |= {curve_name("held_out", f"max_probability/{name}"): [3, 6] for name in sampled}
    assert {name: [event.step for event in board.Histograms(name)] for name in board.Tags()["histograms"]} == due


def test_an_example_is_decoded_with_the_runs_tokenizer(watched: Path) -> None:
    examples = read_records(watched, "example")
    assert [record["step"] for record in examples] == [2, 4, 6]
    assert all(record["text"].startswith("[CLS] ") and "->" in record["text"] for record in examples)
    assert len({record["text"] for record in examples}) == 3
    board = board_of(watched)
    assert [event.step for event in board.Tensors("Example/example/train/text_summary")] == [2, 4, 6]


def test_the_histogram_is_of_the_step_that_the_line_reports(watched: Path) -> None:
    """It covers both micro-batches of that step."""
    events = [board_of(watched).Histograms(f"Detection/logit/{name}/train")[0] for name in ("original", "replaced")]
    tokens = {record["step"]: record["tokens"] for record in read_records(watched, "train")}
    assert sum(event.histogram_value.num for event in events) == tokens[2]
