"""Claims about the GPU script, as far as a CPU can test them: its stages go on, end in time and detect errors."""

import json
import sys
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from bench.gpu.calls import Results, in_order, main, run_part
from bench.gpu.items import SkippedError, run_items
from bench.gpu.parts import GpuOptions, Part, all_parts


@pytest.fixture
def options(tmp_path: Path) -> GpuOptions:
    """Options of a call on a CPU, whose folders exist."""
    made = GpuOptions.from_values({"output": tmp_path / "out", "work": tmp_path / "work", "device": "cpu"})
    (made.output / "logs").mkdir(parents=True)
    made.work.mkdir()
    return made


def call(part: Part, options: GpuOptions, seconds: float = 60.0) -> dict[str, Any]:
    """Runs a part; returns its record."""
    results = Results(options.output)
    run_part(part, seconds, options, results, Event())
    return results.of(part)


def script(options: GpuOptions, code: str, seconds: float = 60.0, name: str = "part") -> Part:
    """A part that runs Python code, to which `product` is the path of its results."""
    start = f"import json, pathlib, time; product = pathlib.Path({str(options.product(name))!r})\n"
    return Part("a", name, (sys.executable, "-c", start + code), seconds)


ENDS_THE_SECOND_TIME = """
found = json.loads(product.read_text()) if product.exists() else {"steps": 0}
product.write_text(json.dumps({"steps": found["steps"] + 1}))
time.sleep(0 if found["steps"] else 60)
"""


def test_a_part_killed_at_the_limit_keeps_its_results_and_goes_on_in_the_next_call(options: GpuOptions) -> None:
    part = script(options, ENDS_THE_SECOND_TIME)
    first = call(part, options, seconds=2)
    assert (first["state"], first["found"]) == ("unfinished", {"steps": 1})
    second = call(part, options)
    assert (second["state"], second["found"], second["calls"]) == ("finished", {"steps": 2}, 2)


def test_a_finished_part_is_not_run_again_and_parts_that_failed_come_last(options: GpuOptions) -> None:
    failing, slow, fine, new = (
        script(options, code, seconds, name)
        for name, code, seconds in (
            ("failing", "raise SystemExit(3)", 60),
            ("slow", "time.sleep(60)", 0.6),
            ("fine", "", 60),
            ("new", "", 60),
        )
    )
    assert call(failing, options)["state"] == "failed"
    assert call(slow, options, seconds=0.6)["state"] == "too slow"
    assert call(fine, options)["state"] == "finished"
    waiting = in_order([failing, slow, fine, new], Results(options.output))
    assert [part.name for part in waiting] == ["new", "failing", "slow"]


def test_parts_that_need_shards_are_skipped_without_them(
    options: GpuOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    main(options.model_copy(update={"stages": ("e", "f")}))
    records = {**Results(options.output).read("e"), **Results(options.output).read("f")}
    assert {record["reason"] for record in records.values()} == {"needs shards: give --data"}
    assert "needs shards" in capsys.readouterr().out


def test_stages_a_to_e_take_at_most_35_minutes_and_no_part_more_than_nine(tmp_path: Path) -> None:
    parts = list(all_parts(GpuOptions.from_values({"data": tmp_path})))
    checks = max(part.seconds for part in parts if part.stage == "a")  # side by side
    assert checks + sum(part.seconds for part in parts if part.stage in "bcde") <= 35 * 60
    assert max(part.seconds for part in parts) <= 9 * 60
    assert [part.stage for part in parts] == sorted(part.stage for part in parts)


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_a_gpu_without_bf16_is_measured_in_fp16_and_fp32_comes_last(
    half: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: half == "bf16")
    parts = list(all_parts(GpuOptions.from_values({"data": tmp_path})))
    assert {part.command[part.command.index("--dtype") + 1] for part in parts if part.warm_up} == {half}
    for stage, kind in (("a", "bits"), ("e", "training")):
        names = [part.name for part in parts if part.stage == stage and kind in part.name]
        assert names[0] == f"{kind} {half}" and names[-1] == f"{kind} fp32"
        assert (f"{kind} bf16" in names) == (half == "bf16")


def test_passed_items_are_kept_and_the_one_that_hung_comes_last(tmp_path: Path) -> None:
    ran, product = [], tmp_path / "items.json"
    product.write_text(json.dumps({"done": {"outcome": "passed", "x": 1}, "hung": {"outcome": "began"}}))

    def item(name: str, error: Exception | None = None) -> dict[str, int]:
        ran.append(name)
        if error:
            raise error
        return {"x": 2}

    errors = {"done": None, "hung": None, "wrong": AssertionError("off"), "absent": SkippedError("no GPU"), "new": None}
    assert run_items({name: partial(item, name, error) for name, error in errors.items()}, product) == 1
    assert ran == ["wrong", "absent", "new", "hung"]
    records = json.loads(product.read_text())
    assert [record["outcome"] for record in records.values()] == ["passed", "passed", "failed", "skipped", "passed"]
    assert records["done"]["x"] == 1 and records["wrong"]["reason"] == "AssertionError: off"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_on_a_cpu_every_part_of_every_stage_runs_to_its_end(
    options: GpuOptions, shards_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = options.model_copy(update={"data": shards_folder, "minutes": 20, "study_scale": 0.0005})
    assert main(whole) == 0, capsys.readouterr().out
    records = {part.name: Results(options.output).of(part) for part in all_parts(whole)}
    assert {record["state"] for record in records.values()} == {"finished"}
    tests = (options.output / "logs/tests.txt").read_text()
    assert "test_the_engine_has_the_losses_of_plain_pytorch[hp_loss-zero1_fp16] PASSED" in tests
    assert all(records[f"bits {name}"]["found"][name]["outcome"] == "passed" for name in ("bf16", "fp16", "fp32"))
    assert records["bits fp16"]["found"]["fp16"]["skipped"] > 0
    assert records["step tiny 32 hp_loss"]["found"]["contenders"]["hp_loss"]["seconds"] > 0
    assert records["ablation tiny 32"]["found"]["without cpu_ops"]["seconds"] > 0
    assert sum(row["share"] for row in records["profile tiny 32"]["found"]["kernels"]) > 0.8
    assert len(records["training bf16"]["found"]["curve"]) == 20
    (cell,) = records["study"]["found"]["cells"].values()
    assert cell["numbers"]["frozen AUC"] > 0
    assert (options.output / "trace.json.gz").stat().st_size < 16e6
