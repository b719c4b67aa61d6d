"""Claims about the warnings for a doubtful plan: what each is about, and that a sensible plan has none."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from pretrain.training.doubts import disk_needed, doubts, too_long, unasked_months
from pretrain.training.machines import GPUS, Machine
from pretrain.training.models import build_model
from pretrain.training.options import RunOptions
from pretrain.training.plan import Plan, make_plan

PARAMETERS = 10**7
GPU = GPUS["v100", "fp16"]._replace(name="1 V100")
SENSIBLE: dict[str, Any] = {"preset": "tiny"}
DOUBTFUL: dict[str, tuple[dict[str, Any], str]] = {
    "epochs": (
        {"preset": "tiny", "set": ("optim.steps=20000",)},
        r"^data: \S+ has [\d,]+ sequences, and 20,000 steps would read them 5\d\d times, .* optim.steps=3\d{3} or",
    ),
    "batch": (
        {"preset": "tiny", "set": ("batch_size=4096", "optim.steps=60")},
        r"^data: \S+ has [\d,]+ sequences, fewer than the 4,096 that a step reads .* --set batch_size lower",
    ),
    "warm-up": (
        {"preset": "tiny", "set": ("optim.steps=80",)},
        r"^optim.warmup_steps: got 50 of 80 steps, .* --set optim.warmup_steps=8 or lower",
    ),
    "vocabulary": (
        {"preset": "base", "set": ("optim.steps=900", "optim.warmup_steps=9")},
        r"^data: the vocabulary of \S+ has 300 tokens, expected about 30,522 ",
    ),
    "positions": (
        {"preset": "small", "set": ("optim.steps=900", "optim.warmup_steps=9")},
        r"^data: the sequences of \S+ have 32 tokens at most, expected 128 to 512 .* --set model.max_positions=32$",
    ),
    "generator": (
        {"preset": "tiny", "set": ("model.generator_hidden_size=128",)},
        r"^model.generator_hidden_size: got 128, .* collapses .* --init_from the discriminator only, with a fresh",
    ),
    "memory": (
        {
            "preset": "base",
            "forecast": "v100",
            "set": ("batch_size=16384", "optim.steps=12", "optim.warmup_steps=1"),
        },
        r"^deepspeed_config: a process needs about [\d.]+ GiB, but 1 V100 has 32.0; .*activation_checkpointing=",
    ),
    "disk": (
        {"preset": "tiny", "set": ("keep_checkpoints=1000000000",)},
        r"^output: checkpoints need .* GiB are free at .* --set keep_checkpoints lower",
    ),
}


def planned(shards: Path, folder: Path, **options: object) -> Plan:
    values = {"data": (shards,), "dry_run": True, "output": folder / "run", **options}
    return make_plan(RunOptions.from_values(values))


def test_a_sensible_plan_has_no_warnings(shards_folder: Path, tmp_path: Path) -> None:
    assert doubts(planned(shards_folder, tmp_path, **SENSIBLE), PARAMETERS, GPU) == []


@pytest.mark.parametrize("name", DOUBTFUL)
def test_a_warning_names_field_value_and_remedy(name: str, shards_folder: Path, tmp_path: Path) -> None:
    options, expected = DOUBTFUL[name]
    found = doubts(planned(shards_folder, tmp_path, **options), PARAMETERS, GPU)
    (one,) = (doubt for doubt in found if re.search(expected, doubt))
    assert "\n" not in one


def test_data_without_a_held_out_part_is_doubtful(shards_folder: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shutil.copytree(shards_folder, shards, ignore=shutil.ignore_patterns("held_out"))
    (found,) = doubts(planned(shards, tmp_path, **SENSIBLE), PARAMETERS, GPU)
    assert found.startswith(f"run.evaluate_every: got 500, but {shards} has no held-out part")
    assert "into another --output with --held_out 0.1, or" in found, "not the share that held nothing out"


def test_shards_that_are_mostly_padding_are_doubtful(shards_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n\n".join("All that is gold does not glitter. " * 2 for _ in range(900)))
    given = {"input": [str(tmp_path / "lines.txt")], "output": str(tmp_path / "short"), "seq_length": 128}
    tools = {"vocab": str(shards_folder / "tokenizer"), "sentences": "line", "workers": 1}  # nothing is held out
    assert build_shards(BuildOptions.from_values(given | tools)) == 0
    plan = planned(tmp_path / "short", tmp_path, preset="tiny", set=("batch_size=4",))
    found, _ = doubts(plan, PARAMETERS, GPU)
    share = 1 - plan.shards.mean_length / 128
    assert share > 0.5 and found.startswith(
        f"data: {share:.0%} of the computation would be on padding, expected at most 25%"
    )
    assert "shorter --seq_length" in found


def test_of_several_folders_the_one_that_is_read_too_often_is_named(shards_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(shards_folder, other)
    plan = planned(shards_folder, tmp_path, **SENSIBLE, data=(shards_folder, other), data_weights=(99, 1))
    assert doubts(plan, PARAMETERS, GPU) == []
    plan = planned(
        shards_folder,
        tmp_path,
        **SENSIBLE,
        data=(shards_folder, other),
        data_weights=(1, 99),
        set=("optim.steps=4000",),
    )
    (found,) = doubts(plan, PARAMETERS, GPU)
    assert found.startswith(f"data: {other} has")


def test_existing_checkpoints_of_the_run_do_not_count_as_missing_disk_space(
    shards_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nearly full disk is enough for a run that only replaces its own checkpoints."""
    plan = planned(shards_folder, tmp_path, **SENSIBLE)
    usage = shutil.disk_usage(tmp_path)._replace(free=10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert [doubt.split(":")[0] for doubt in doubts(plan, PARAMETERS, GPU)] == ["output"]
    checkpoint = plan.folder / "checkpoints" / "step-00000500"
    checkpoint.mkdir(parents=True)
    with (checkpoint / "weights.safetensors").open("wb") as file:
        file.truncate(48 * PARAMETERS)
    assert doubts(plan, PARAMETERS, GPU) == []


def test_a_checkpoint_is_weights_and_two_moments_in_fp32_and_one_more_exists_than_is_kept(
    shards_folder: Path, tmp_path: Path
) -> None:
    plan = planned(shards_folder, tmp_path, **SENSIBLE, set=("keep_checkpoints=2",))
    model = build_model(plan.description)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert disk_needed(plan, sum(parameter.numel() for parameter in model.parameters())) == (2 + 1) * 3 * weights


def test_only_a_run_of_months_counts_as_too_long(shards_folder: Path, tmp_path: Path) -> None:
    plan = planned(shards_folder, tmp_path, preset="tiny")
    day = plan.flops_per_step * plan.run.optim.steps / 86_400
    assert list(too_long(plan, GPU._replace(flops=day / 40))) == []
    (found,) = too_long(plan, GPU._replace(flops=day / 800))
    assert found.startswith("optim.steps: the run would take about 2 years on 1 V100")
    assert list(too_long(plan, GPU._replace(flops=day / 800), steps=plan.run.optim.steps // 20)) == []


@pytest.mark.parametrize(("config", "asked"), [("auto", False), ("zero1_fp32", True)])
def test_months_without_a_gpu_are_refused_unless_a_file_was_named(
    config: str, asked: bool, shards_folder: Path, tmp_path: Path
) -> None:
    plan = planned(shards_folder, tmp_path, preset="small", deepspeed_config=config)
    slow = Machine("these 2 cores", 1e10, "", 2**34)
    found = list(unasked_months(plan, slow))
    assert bool(found) is not asked
    assert list(unasked_months(plan, GPU._replace(flops=1e11))) == []
    if found:
        said = (
            r"^optim\.steps: .* about \d+ (months|years?) on these 2 cores .*all the same, add --deepspeed_config \w+$"
        )
        assert re.search(said, found[0])


def test_a_resume_on_other_hardware_says_that_bits_will_differ(shards_folder: Path, tmp_path: Path) -> None:
    plan = planned(shards_folder, tmp_path, **SENSIBLE)
    assert doubts(plan._replace(started=plan.description), PARAMETERS, GPU) == []
    elsewhere = plan.description.model_copy(update={"hardware": "CPU with sse41"})
    (found,) = doubts(plan._replace(started=elsewhere), PARAMETERS, GPU)
    assert found.startswith("resume: ") and "CPU with sse41" in found and "only within rounding" in found
