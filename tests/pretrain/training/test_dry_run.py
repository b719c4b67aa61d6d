"""Claims about a dry run; tests/cluster/test_dry_run.py covers its checks of other hosts."""

import re
from pathlib import Path

import pytest

from foundation.config import ConfigError
from pretrain.engine.checkpoint import EngineState, save
from pretrain.run import main
from pretrain.training.options import RunOptions
from pretrain.training.run_folder import CHECKPOINTS


def options(shards: Path, **changes: object) -> RunOptions:
    return RunOptions.from_values({"data": (shards,), "dry_run": True, **changes})


def test_the_papers_run_can_be_planned_for_a_gpu_on_a_machine_without_one(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(shards_folder, output=tmp_path / "run", forecast="v100")) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"precision", "model", "objective", "size", "memory", "time", "disk", "launch"} <= lines.keys()
    assert "about 28 hours on 1 V100 in fp16" in lines["time"]
    assert "fp16 (zero1_fp16): what a V100 computes fastest" in lines["precision"]
    assert not (tmp_path / "run").exists()


def test_without_a_gpu_the_forecast_is_for_this_machines_cores(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("optim.steps=3", "optim.warmup_steps=1")
    assert main(options(shards_folder, preset="tiny", output=tmp_path / "run", set=few)) == 0
    printed = capsys.readouterr().out
    assert re.search(
        r"^time        about \d+ seconds? on th.* cores? in \w+, if it reaches its speed on a layer .* now$",
        printed,
        re.M,
    )
    assert "launch      python -m pretrain.run" in printed


def test_a_run_of_months_without_a_gpu_is_a_problem_with_the_option_that_starts_it_all_the_same(
    shards_folder: Path, tmp_path: Path
) -> None:
    months = {"preset": "base", "output": tmp_path / "run", "set": ("optim.steps=100000000",)}
    with pytest.raises(
        ConfigError, match=r"^optim\.steps: the run would take about [\d,]+ years on th.* all the same, add"
    ):
        main(options(shards_folder, **months))
    assert main(options(shards_folder, **months, deepspeed_config="zero1_fp32")) == 0


def test_a_forecast_is_of_a_dry_run(shards_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^forecast: got v100 without --dry_run"):
        main(options(shards_folder, output=tmp_path / "run", forecast="v100", dry_run=False))


def test_a_disk_too_small_for_the_checkpoints_is_a_problem(shards_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"output: checkpoints need .* GiB are free at"):
        main(options(shards_folder, preset="tiny", output=tmp_path / "run", set=("keep_checkpoints=1000000000",)))


def test_disk_space_counts_the_newest_checkpoints_one_more_and_the_permanent_ones(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def needed(*overrides: str) -> float:
        main(options(shards_folder, preset="small", output=tmp_path / "run", set=overrides, forecast="v100"))
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("disk "))
        return float(line.split()[1])

    plain = needed("optim.steps=40000", "checkpoint_every=5000", "keep_checkpoints=3")
    kept = needed("optim.steps=40000", "checkpoint_every=5000", "keep_checkpoints=3", "keep_every=10000")
    assert kept == pytest.approx(2 * plain, abs=0.2)  # 4 more than 3 + 1


def test_a_host_is_shown_without_control_characters(shards_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("no\x1b[2Jde\u202e slots=1\n")
    with pytest.raises(ConfigError, match="hostfile") as caught:
        main(options(shards_folder, preset="tiny", output=tmp_path / "run", hostfile=tmp_path / "hosts"))
    assert str(caught.value).isprintable() and r"no\x1b[2Jde\u202e slots=1" in str(caught.value)


def test_a_missing_hostfile_is_named(shards_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hostfile: cannot read .*16v10"):
        main(options(shards_folder, preset="tiny", output=tmp_path / "run", hostfile=tmp_path / "16v10"))


def test_a_doubtful_plan_ends_with_its_warnings_instead_of_no_problem(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(shards_folder, preset="base", output=tmp_path / "run", forecast="v100")) == 0
    lines = capsys.readouterr().out.splitlines()
    last = lines[lines.index("nothing was started; 3 warnings:") + 1 :]
    assert len(last) == 3 and all(line.startswith("WARNING: data: ") for line in last)
    assert "765,000 steps would read them" in last[0]
    assert main(options(shards_folder, preset="tiny", output=tmp_path / "run")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing was started; no problem was found"


def test_the_dry_run_of_a_stopped_run_says_where_it_resumes_and_how_without_options_of_the_launcher(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["pretrain/run.py", "--local_rank=0", "--preset", "tiny", "--dry_run", "--forecast", "a100"]
    )
    planned = options(shards_folder, preset="tiny", output=tmp_path / "run", forecast="a100")
    assert main(planned) == 0
    printed = capsys.readouterr().out
    assert "launch      deepspeed --module pretrain.run --preset tiny\n" in printed and "resumes" not in printed
    save(tmp_path / "run" / CHECKPOINTS, 326, EngineState(326, {}, {}, {}), {}, keep_last=1)
    assert main(planned) == 0
    assert "start       resumes from step 326 of 2,000" in capsys.readouterr().out


def test_a_plan_of_months_is_a_warning(shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = ("optim.steps=100000000",)
    assert main(options(shards_folder, preset="base", output=tmp_path / "run", set=steps, forecast="v100")) == 0
    assert "WARNING: optim.steps: the run would take" in capsys.readouterr().out.splitlines()[-1]
