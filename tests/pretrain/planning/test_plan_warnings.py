"""Claims about the warnings for a doubtful plan: what each is about, and that a sensible plan has none."""

import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from electra_sampler.foundation.config import ConfigError
from pretrain.engine.checkpoint import EngineState, save
from pretrain.planning.estimates import GPUS, Machine
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import Plan, make_plan
from pretrain.planning.plan_warnings import disk_needed, plan_warnings, too_long, unconfirmed_days
from pretrain.run import main
from pretrain.runs.folder import CHECKPOINTS
from pretrain.runs.models import build_model

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
        r"^model.generator_hidden_size: got 128, .* collapses; --init_from the discriminator only",
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


def options(shards: Path, folder: Path, **changes: object) -> RunOptions:
    return RunOptions.from_values({"data": (shards,), "dry_run": True, "output": folder / "run", **changes})


def planned(shards: Path, folder: Path, **changes: object) -> Plan:
    return make_plan(options(shards, folder, **changes))


def test_a_sensible_plan_has_no_warnings(shards_folder: Path, tmp_path: Path) -> None:
    assert plan_warnings(planned(shards_folder, tmp_path, **SENSIBLE), PARAMETERS, GPU) == []


@pytest.mark.parametrize("name", DOUBTFUL)
def test_a_warning_names_field_value_and_remedy(name: str, shards_folder: Path, tmp_path: Path) -> None:
    given, expected = DOUBTFUL[name]
    found = plan_warnings(planned(shards_folder, tmp_path, **given), PARAMETERS, GPU)
    (one,) = (warning for warning in found if re.search(expected, warning))
    assert "\n" not in one


def test_data_without_a_held_out_part_is_doubtful(shards_folder: Path, tmp_path: Path) -> None:
    shards = shutil.copytree(shards_folder, tmp_path / "shards", ignore=shutil.ignore_patterns("held_out"))
    (found,) = plan_warnings(planned(shards, tmp_path, **SENSIBLE), PARAMETERS, GPU)
    assert found.startswith(f"run.evaluate_every: got 500, but {shards} has no held-out part")
    assert "into another --output with --held_out 0.1, or" in found, "not the share that held nothing out"


def test_shards_that_are_mostly_padding_are_doubtful(shards_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n\n".join("All that is gold does not glitter. " * 2 for _ in range(900)))
    given = {"input": [str(tmp_path / "lines.txt")], "output": str(tmp_path / "short"), "seq_length": 128}
    tools = {"vocab": str(shards_folder / "tokenizer"), "sentences": "line", "workers": 1}  # nothing is held out
    assert build_shards(BuildOptions.from_values(given | tools)) == 0
    plan = planned(tmp_path / "short", tmp_path, preset="tiny", set=("batch_size=4",))
    found, _ = plan_warnings(plan, PARAMETERS, GPU)
    share = 1 - plan.shards.mixture.mean_length / 128
    assert share > 0.5 and found.startswith(
        f"data: {share:.0%} of the computation would be on padding, expected at most 25%"
    )
    assert "shorter --seq_length" in found


def test_of_several_folders_the_one_that_is_read_too_often_is_named(shards_folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(shards_folder, tmp_path / "other")
    plan = planned(shards_folder, tmp_path, **SENSIBLE, data=(shards_folder, other), data_weights=(99, 1))
    assert plan_warnings(plan, PARAMETERS, GPU) == []
    plan = planned(
        shards_folder,
        tmp_path,
        **SENSIBLE,
        data=(shards_folder, other),
        data_weights=(1, 99),
        set=("optim.steps=4000",),
    )
    (found,) = plan_warnings(plan, PARAMETERS, GPU)
    assert found.startswith(f"data: {other} has")


def test_existing_checkpoints_of_the_run_do_not_count_as_missing_disk_space(
    shards_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nearly full disk is enough for a run that only replaces its own checkpoints."""
    plan = planned(shards_folder, tmp_path, **SENSIBLE)
    usage = shutil.disk_usage(tmp_path)._replace(free=10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert [warning.split(":")[0] for warning in plan_warnings(plan, PARAMETERS, GPU)] == ["output"]
    checkpoint = plan.folder / "checkpoints" / "step-00000500"
    checkpoint.mkdir(parents=True)
    with (checkpoint / "weights.safetensors").open("wb") as file:
        file.truncate(48 * PARAMETERS)
    assert plan_warnings(plan, PARAMETERS, GPU) == []


@pytest.mark.parametrize(("kept", "checkpoints"), [((), 2 + 1), (("keep_every=500",), 2 + 1 + 2000 // 500)])
def test_a_checkpoint_is_weights_and_two_moments_in_fp32_and_one_more_exists_than_is_kept(
    kept: tuple[str, ...], checkpoints: int, shards_folder: Path, tmp_path: Path
) -> None:
    plan = planned(shards_folder, tmp_path, **SENSIBLE, set=("keep_checkpoints=2", *kept))
    model = build_model(plan.description)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert disk_needed(plan, sum(parameter.numel() for parameter in model.parameters())) == checkpoints * 3 * weights


def test_only_a_run_of_months_counts_as_too_long(shards_folder: Path, tmp_path: Path) -> None:
    plan = planned(shards_folder, tmp_path, preset="tiny")
    tokens = plan.run.batch_size * plan.run.optim.steps * plan.shards.mixture.mean_length
    day = plan.sizes.flops * tokens / 86_400
    assert list(too_long(plan, GPU._replace(flops=day / 40))) == []
    (found,) = too_long(plan, GPU._replace(flops=day / 800))
    assert found.startswith("optim.steps: the run would take about 2.4 years on 1 V100")
    assert list(too_long(plan, GPU._replace(flops=day / 800), steps=plan.run.optim.steps // 20)) == []


@pytest.mark.parametrize(("config", "asked"), [("auto", False), ("zero1_fp32", True)])
def test_months_without_a_gpu_are_refused_unless_a_file_was_named(
    config: str, asked: bool, shards_folder: Path, tmp_path: Path
) -> None:
    plan = planned(shards_folder, tmp_path, preset="small", deepspeed_config=config)
    slow = Machine("these 2 cores", 1e10, "", 2**34)
    assert bool(list(unconfirmed_days(plan, slow))) is not asked
    assert list(unconfirmed_days(plan, GPU._replace(flops=1e11))) == []


def test_a_resume_on_other_hardware_says_that_bits_will_differ(shards_folder: Path, tmp_path: Path) -> None:
    plan = planned(shards_folder, tmp_path, **SENSIBLE)
    assert plan_warnings(plan._replace(started=plan.description), PARAMETERS, GPU) == []
    elsewhere = plan.description.model_copy(update={"hardware": "CPU with sse41"})
    (found,) = plan_warnings(plan._replace(started=elsewhere), PARAMETERS, GPU)
    assert found.startswith("resume: ") and "CPU with sse41" in found and "only within rounding" in found


def test_the_papers_run_can_be_planned_for_a_gpu_on_a_machine_without_one(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(shards_folder, tmp_path, forecast="v100")) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"precision", "model", "objective", "size", "memory", "time", "disk", "launch"} <= lines.keys()
    assert "about 33 hours, 153 ms a step, on 1 V100 in fp16" in lines["time"]
    assert "fp16 (zero1_fp16): what a V100 computes fastest" in lines["precision"]
    assert not (tmp_path / "run").exists()


def test_a_forecast_that_launches_decide_says_so(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for graphs, expected in (("auto", "each reaches 26% of 989"), ("off", "its host launches an operation in 45 µs")):
        assert main(options(shards_folder, tmp_path, preset="base", forecast="h100", graphs=graphs)) == 0
        assert f"on 1 H100 in bf16, if {expected}" in capsys.readouterr().out


def test_without_a_gpu_the_forecast_is_for_this_machines_cores(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(shards_folder, tmp_path, preset="tiny", set=("optim.steps=3", "optim.warmup_steps=1"))) == 0
    printed = capsys.readouterr().out
    speed = "if it reaches the speed of this model, timed now"
    assert re.search(rf"^time        about .+, [\d.,]+ ms a step, on th.* cores? in \w+, {speed}$", printed, re.M)
    assert "launch      python -m pretrain.run" in printed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"forecast": "v100", "dry_run": False}, r"^forecast: got v100 without --dry_run"),
        (
            {"preset": "tiny", "set": ("keep_checkpoints=1000000000",)},
            r"output: checkpoints need .* GiB are free at",
        ),
    ],
    ids=["a forecast without a dry run", "a disk too small for the checkpoints"],
)
def test_a_forecast_without_a_dry_run_and_a_disk_too_small_for_the_checkpoints_are_refused(
    given: dict[str, Any], said: str, shards_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        main(options(shards_folder, tmp_path, **given))


def test_a_run_of_months_without_a_gpu_is_a_problem_with_the_option_that_starts_it_all_the_same(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    months = {"preset": "tiny", "set": ("optim.steps=10000000000", "keep_every=0")}
    said = r"^optim\.steps: the run would take about [\d,]+ years on th.* all the same, add --deepspeed_config \w+$"
    with pytest.raises(ConfigError, match=said):
        main(options(shards_folder, tmp_path, **months))
    assert main(options(shards_folder, tmp_path, **months, deepspeed_config="zero1_fp32")) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("WARNING: optim.steps: the run would take"), "with that option a warning remains"


@pytest.mark.parametrize(
    ("line", "problem"), [("slot=1", "line 1: got '.* slot=1'"), ("slots=1", r"fp16\.enabled: true without a GPU")]
)
def test_the_mistakes_of_a_hostfile_and_fp16_on_a_host_without_a_gpu_are_named(
    line: str, problem: str, shards_folder: Path, tmp_path: Path
) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"{socket.gethostname()} {line}\n")
    with pytest.raises(ConfigError, match=problem) as caught:
        main(options(shards_folder, tmp_path, preset="tiny", hostfile=hostfile, deepspeed_config="zero1_fp16"))
    assert len(caught.value.problems) == 1


def test_a_doubtful_plan_ends_with_its_warnings_instead_of_no_problem(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(shards_folder, tmp_path, preset="base", forecast="v100")) == 0
    lines = capsys.readouterr().out.splitlines()
    last = lines[lines.index("nothing was started; 3 warnings:") + 1 :]
    assert len(last) == 3 and all(line.startswith("WARNING: data: ") for line in last)
    assert "765,000 steps would read them" in last[0]
    assert main(options(shards_folder, tmp_path, preset="tiny")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing was started; no problem was found"


def test_the_dry_run_of_a_stopped_run_says_where_it_resumes_and_how_without_options_of_the_launcher(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["pretrain/run.py", "--local_rank=0", "--preset", "tiny", "--dry_run", "--forecast", "a100"]
    )
    given = options(shards_folder, tmp_path, preset="tiny", forecast="a100")
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert "launch      deepspeed --module pretrain.run --preset tiny\n" in printed and "resumes" not in printed
    save(tmp_path / "run" / CHECKPOINTS, 326, EngineState(326, {}, {}, {}), {}, keep_last=1)
    assert main(given) == 0
    assert "start       resumes from step 326 of 2,000" in capsys.readouterr().out


def test_a_dry_run_names_the_tasks_that_a_run_in_this_shell_would_wait_for(
    shards_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PTY_PORT": "40000"}.items():
        monkeypatch.setenv(name, value)
    assert main(options(shards_folder, tmp_path, preset="tiny")) == 0
    said = capsys.readouterr().out
    assert "no problem was found" not in said and "one of 4 tasks of its Slurm step, and a run started in it" in said
