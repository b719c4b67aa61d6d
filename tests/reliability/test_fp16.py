"""Claims about fp16, from whole runs on a CPU that declares fp16 (bench/gpu/declared.py): two ranks, two micro-batches.

Their first loss scale, 2^14, overflows for real. What a CPU cannot show is a GPU's arithmetic and NCCL.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pretrain.engine.checkpoint import newest_valid
from pretrain.presets import preset
from pretrain.runs.log import read_metrics
from tests.pretrain.whole_runs import losses, run_arguments
from tests.reliability.runs import as_killed_after, checkpoint_of
from tests.warm import Warm, outputs, two_ranks

STEPS, SKIPPED, KILLED_AT = 8, 4, 2
"""The run is killed while its scale still falls."""
SCALES = [2.0**power for power in (14, 14, 13, 12)]
"""Those that overflow: by hysteresis the first is tried twice. The next one, 2^11, fits."""
SIZES = "layers=1 hidden_size=32 heads=2 intermediate_size=64 embedding_size=16 generator_hidden_size=16 dropout=0"
CHANGES = (
    *(f"model.{size}" for size in (*SIZES.split(), "attention_dropout=0")),
    *(f"optim.steps={STEPS}", f"evaluate_every={STEPS}", "checkpoint_every=1", f"keep_checkpoints={STEPS}"),
    "deepspeed.train_micro_batch_size_per_gpu=2",
)
Stages = pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.long), 3])
"""DeepSpeed's stages 1 and 2 share their code; test_engine.py also trains under stage 2 in fp16 and resumes."""
Run = Callable[[int], Path]


def train(shards: Path, folder: Path, stage: int, *options: str) -> Path:
    """Trains or resumes a run under `zero1_fp16`, with this ZeRO stage, on two ranks."""
    changes = (*CHANGES, "deepspeed.fp16.initial_scale_power=14", f"deepspeed.zero_optimization.stage={stage}")
    arguments = run_arguments(shards, folder, *changes)[1:]
    command = ("bench/gpu/declared.py", *options, *arguments, "--deepspeed_config", "zero1_fp16")
    outputs(two_ranks(*command))
    return folder


@pytest.fixture(scope="module")
def whole(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Folder of an undisturbed run at a stage."""
    folder = tmp_path_factory.mktemp("fp16")
    return cache(lambda stage: train(shards_folder, folder / f"stage-{stage}", stage))


@pytest.fixture(scope="module")
def fp32(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """Records of one process in fp32 whose updates are too small to change a weight."""
    folder = tmp_path_factory.mktemp("fp32") / "run"
    arguments = run_arguments(shards_folder, folder, *CHANGES, "optim.lr=1e-30")
    outputs([Warm(*arguments, "--deepspeed_config", "zero0_fp32")])
    return read_metrics(folder, "train")


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(checkpoint_of(folder, step) / "weights.safetensors")


@Stages
def test_an_overflow_halves_the_scale_after_the_first_and_changes_no_weight(whole: Run, stage: int) -> None:
    records = read_metrics(whole(stage), "train")
    assert [record["loss_scale"] for record in records] == SCALES + [2.0**11] * (STEPS - SKIPPED)
    assert [record["skipped"] for record in records] == [*range(1, SKIPPED + 1), *[SKIPPED] * (STEPS - SKIPPED)]
    first, last = weights(whole(stage), 1), weights(whole(stage), SKIPPED)
    assert all(torch.equal(first[name], last[name]) for name in first)
    after = weights(whole(stage), SKIPPED + 2)
    assert sum(not torch.equal(first[name], after[name]) for name in first) > 0.9 * len(first)


@Stages
def test_the_schedule_follows_updates_and_the_data_steps(whole: Run, stage: int) -> None:
    records = read_metrics(whole(stage), "train")
    run = preset("tiny")
    run = run.model_copy(update={"optim": run.optim.model_copy(update={"steps": STEPS, "warmup_steps": 4})})
    assert [record["learning_rate"] for record in records[SKIPPED:]] == [
        run.optim.rate(update) for update in range(STEPS - SKIPPED)
    ]
    tokens = [record["tokens_so_far"] for record in records]
    assert all(before < after for before, after in pairwise(tokens))


@Stages
def test_the_gradient_is_unscaled_and_clipped(whole: Run, stage: int) -> None:
    """After the first update, the first moment is a tenth of the gradient."""
    moments = load_file(checkpoint_of(whole(stage), SKIPPED + 1) / "optimizer.safetensors")
    square = sum(float(moment.double().square().sum()) for name, moment in moments.items() if "exp_avg/" in name)
    run = preset("tiny")
    assert read_metrics(whole(stage), "train")[SKIPPED]["gradient_norm"] > 10 * run.optim.gradient_clipping
    assert math.sqrt(square) / (1 - run.optim.betas[0]) == pytest.approx(run.optim.gradient_clipping, rel=1e-3)


@Stages
def test_every_stage_trains_like_fp32(whole: Run, stage: int, fp32: list[dict[str, float]]) -> None:
    """The norm is compared before the first update, where both have the same weights."""
    records = read_metrics(whole(stage), "train")
    assert records[SKIPPED]["gradient_norm"] == pytest.approx(fp32[SKIPPED]["gradient_norm"], rel=1e-2)
    assert records[SKIPPED]["discriminator_loss"] == pytest.approx(fp32[SKIPPED]["discriminator_loss"], rel=1e-2)
    for name in ("discriminator_loss", "gradient_norm"):
        series = [[record[name] for record in read_metrics(whole(each), "train")[SKIPPED:]] for each in (stage, 1)]
        assert series[0] == pytest.approx(series[1], rel=2e-2)
    assert records[-1]["discriminator_loss"] < 0.98 * records[0]["discriminator_loss"]


@Stages
def test_a_killed_run_resumes_bitwise_with_its_loss_scale(
    whole: Run, stage: int, shards_folder: Path, tmp_path: Path
) -> None:
    """At stage 1 the resumed run's device has streams, which change no bit either."""
    folder = as_killed_after(KILLED_AT, whole(stage), tmp_path / "run")
    train(shards_folder, folder, stage, *(["--asynchronous"] if stage == 1 else []))
    assert losses(folder) == losses(whole(stage))
    for file in ("weights.safetensors", "optimizer.safetensors", "state.json"):
        ends = [(checkpoint_of(run, STEPS) / file).read_bytes() for run in (folder, whole(stage))]
        assert ends[0] == ends[1], file
    newest = newest_valid(folder / "checkpoints")
    assert newest is not None and newest.step == STEPS
