"""Claims about the GPU script, as far as a CPU can test them: its stages go on, end in time and detect errors."""

import json
import sys
import time
from functools import partial

import pytest
import torch

import bench.gpu_checks
from bench.gpu import Results, in_order, main, run_part, summary
from bench.gpu_ablation import switches
from bench.gpu_checks import MISSED, check_distribution, check_draws, check_precision, missed_by
from bench.gpu_items import SkippedError, outcome, run_items
from bench.gpu_parts import GpuOptions, Part, all_parts
from bench.gpu_runs import Run
from bench.gpu_setting import PLAIN, Plainly, fast_modules, setting
from foundation.config import ConfigError
from pretrain.model import ops
from pretrain.model.distribution import inverse_cdf
from pretrain.model.encoder import ElectraEncoder


@pytest.fixture
def options(tmp_path):
    """Options of a call on a CPU, whose folders exist."""
    made = GpuOptions(output=tmp_path / "out", work=tmp_path / "work", device="cpu")
    made.output.mkdir()
    made.work.mkdir()
    return made


def call(part, options, seconds=60.0):
    """Runs a part; returns its record."""
    results = Results(options.output)
    with (options.output / "log.txt").open("a") as log:
        run_part(part, seconds, options, results, log)
    return results.of(part)


def script(options, code, seconds=60.0, name="part"):
    """A part that runs Python code, to which `product` is the path of its results."""
    start = f"import json, pathlib, time; product = pathlib.Path({str(options.product(name))!r})\n"
    return Part("a", name, (sys.executable, "-c", start + code), seconds)


COUNTS = """
found = json.loads(product.read_text()) if product.exists() else {"steps": 0}
product.write_text(json.dumps({"steps": found["steps"] + 1}))
"""
ENDS_THE_SECOND_TIME = COUNTS + "time.sleep(0 if found['steps'] else 60)"


def test_a_part_killed_at_the_limit_keeps_its_results_and_goes_on_in_the_next_call(options):
    part = script(options, ENDS_THE_SECOND_TIME)
    first = call(part, options, seconds=2)
    assert (first["state"], first["found"]) == ("unfinished", {"steps": 1})
    second = call(part, options)
    assert (second["state"], second["found"], second["calls"]) == ("finished", {"steps": 2}, 2)


def test_a_part_goes_on_with_the_results_of_another_machine(options, tmp_path):
    part = script(options, COUNTS)
    call(part, options)
    options.product(part.name).unlink()  # a fresh machine has the output folder only
    assert call(part, options)["found"] == {"steps": 2}


def test_a_finished_part_is_not_run_again_and_parts_that_failed_come_last(options):
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


def test_a_call_without_time_starts_nothing(options, capsys):
    started = time.monotonic()
    assert main(options.model_copy(update={"minutes": 0.01, "stages": ("b",)})) == 0
    assert time.monotonic() - started < 20
    assert {record["state"] for record in Results(options.output).read("b").values()} == {"unfinished"}
    assert "run the same command again" in capsys.readouterr().out


def test_parts_that_need_shards_are_skipped_without_them(options, capsys):
    main(options.model_copy(update={"stages": ("e", "f")}))
    records = {**Results(options.output).read("e"), **Results(options.output).read("f")}
    assert {record["reason"] for record in records.values()} == {"needs shards: give --data"}
    assert "needs shards" in capsys.readouterr().out


def test_a_package_that_is_not_installed_is_named(options):
    part = Part("b", "step", (), 1, ("torch", "no_such_package"))
    assert part.missing(options) == "needs no_such_package, not installed here"


def test_a_folder_without_shards_is_refused(options, tmp_path):
    with pytest.raises(ConfigError, match=r"has no manifest.json, expected shards from build_shards.py"):
        main(options.model_copy(update={"data": tmp_path}))


def test_stages_a_to_e_take_at_most_35_minutes_and_no_part_more_than_nine(tmp_path):
    parts = list(all_parts(GpuOptions(data=tmp_path)))
    assert sum(part.seconds for part in parts if part.stage != "f") <= 35 * 60
    assert max(part.seconds for part in parts) <= 9 * 60
    assert [part.stage for part in parts] == sorted(part.stage for part in parts)


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_a_gpu_without_bf16_is_measured_in_fp16_and_fp32_comes_last(half, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: half == "bf16")
    parts = list(all_parts(GpuOptions(data=tmp_path)))
    assert {part.command[part.command.index("--dtype") + 1] for part in parts if part.warm_up} == {half}
    for stage, kind in (("a", "bits"), ("e", "training")):
        names = [part.name for part in parts if part.stage == stage and kind in part.name]
        assert names[0] == f"{kind} {half}" and names[-1] == f"{kind} fp32"
        assert (f"{kind} bf16" in names) == (half == "bf16")


def test_how_a_contender_of_a_step_ended_is_a_result(options):
    found = '{"contenders": {"compiled": {"ended": "ended with -9 after 112 s"}}}'
    part = script(options, f"product.write_text({found!r}); raise SystemExit(1)")
    assert call(part, options)["state"] == "failed"
    assert call(part._replace(warm_up=True), options)["state"] == "finished"


def test_every_switch_of_the_ablation_changes_something_and_a_capture_comes_last(monkeypatch):
    setting("cpu")
    assert "PyTorch's attention by the formula" not in switches("cuda") and "layers compiled" not in switches("cpu")
    assert list(switches("cuda"))[-1] == "with CUDA graphs" and "without cpu_ops" in switches("cpu")
    monkeypatch.setattr(ops, "attend", PLAIN["attend"])  # as on a V100
    assert "PyTorch's attention by the formula" in switches("cuda")


def test_a_failed_item_of_a_part_is_named_and_counts_as_a_failure(options, capsys):
    (part,) = (part for part in all_parts(options) if part.name == "kernels")
    found = {"draws": {"outcome": "failed", "reason": "too far off"}, "norm": {"outcome": "passed"}}
    Results(options.output).write(part, {"state": "failed", "found": found})
    assert summary(options, Results(options.output)) == 1
    assert "draws: failed too far off" in capsys.readouterr().out


def test_passed_items_are_kept_and_the_one_that_hung_comes_last(tmp_path):
    ran, product = [], tmp_path / "items.json"
    product.write_text(json.dumps({"done": {"outcome": "passed", "x": 1}, "hung": {"outcome": "began"}}))

    def item(name, error=None):
        ran.append(name)
        if error:
            raise error
        return {"x": 2}

    errors = {"done": None, "hung": None, "wrong": AssertionError("off"), "absent": SkippedError("no GPU"), "new": None}
    assert run_items({name: partial(item, name, error) for name, error in errors.items()}, product) == 1
    assert ran == ["wrong", "absent", "new", "hung"]
    records = json.loads(product.read_text())
    outcomes = [record["outcome"] for record in records.values()]
    assert outcomes == ["passed", "passed", "failed", "skipped", "passed"]
    assert records["done"]["x"] == 1 and records["wrong"]["reason"] == "AssertionError: off"


def test_plain_operations_replace_the_fast_ones_for_a_reference():
    setting("cpu")
    assert fast_modules() == ["pretrain.model.cpu_ops"]
    fast = ops.attend
    with Plainly("another.module"):
        assert ops.attend is fast
    with Plainly():
        assert ops.attend is PLAIN["attend"] is not fast and not fast_modules()
    assert ops.attend is fast


def test_the_checksum_of_a_run_changes_with_any_bit_of_its_losses_weights_or_moments(options):
    run = Run(options, "one", "fp32", ("tiny", 8), 10)
    last = run.folder / "checkpoints/step-00000010"
    last.mkdir(parents=True)
    files = {
        "state.json": b'{"extra": {"recent_losses": [0.5]}}',
        "weights.safetensors": b"1" * 9,
        "optimizer.safetensors": b"2" * 9,
    }
    for name, content in files.items():
        (last / name).write_bytes(content)
    digest = run.digest()
    for name, content in files.items():
        (last / name).write_bytes(content.replace(b"5", b"6").replace(b"1", b"3", 1).replace(b"2", b"3", 1))
        assert run.digest() != digest
        (last / name).write_bytes(content)
    assert run.digest() == digest


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_without_a_gpu_fp16_is_rehearsed_on_a_cpu_that_declares_it(precision, options):
    scripts = {"fp16": ("bench/gpu_declared.py", "--asynchronous"), "bf16": ("pretrain/run.py",)}
    assert Run(options, "one", precision, ("tiny", 8), 10).script == scripts[precision]
    on_a_gpu = options.model_copy(update={"device": "cuda"})
    assert Run(on_a_gpu, "one", precision, ("tiny", 8), 10).script == ("pretrain/run.py",)


def test_a_missing_gpu_is_a_failure_and_not_a_pass():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RuntimeError, match="asked for cuda, found cpu"):
        setting("cuda")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_on_a_cpu_every_part_of_every_stage_runs_to_its_end(options, shards_folder, capsys):
    whole = options.model_copy(update={"data": shards_folder, "minutes": 20, "study_scale": 0.0005})
    assert main(whole) == 0, capsys.readouterr().out
    parts = list(all_parts(whole))
    records = {part.name: Results(options.output).of(part) for part in parts}
    assert {record["state"] for record in records.values()} == {"finished"}
    skipped = {name for name, item in records["kernels"]["found"].items() if item["outcome"] == "skipped"}
    assert {"hp_loss compiled", "no synchronisation"} <= skipped and not [name for name in skipped if "engine" in name]
    assert all(records[f"bits {name}"]["found"][name]["outcome"] == "passed" for name in ("bf16", "fp16", "fp32"))
    assert records["bits fp16"]["found"]["fp16"]["skipped"] > 0
    assert records["step tiny 32 hp_loss"]["found"]["contenders"]["hp_loss"]["seconds"] > 0
    assert records["ablation tiny 32"]["found"]["without cpu_ops"]["seconds"] > 0
    assert sum(row["share"] for row in records["profile tiny 32"]["found"]["kernels"]) > 0.9
    assert len(records["training bf16"]["found"]["curve"]) == 20
    (cell,) = records["study"]["found"].values()
    assert cell["numbers"]["frozen AUC"] > 0
    assert (options.output / "trace.json.gz").stat().st_size < 16e6
    assert len(list(options.output.iterdir())) == 8  # as many files as may come back from a machine
    calls = [record["calls"] for record in records.values()]
    assert main(whole) == 0
    assert [Results(options.output).of(part)["calls"] for part in parts] == calls


def test_a_wrong_sampling_distribution_is_detected(monkeypatch):
    where = setting("cpu")
    assert outcome(partial(check_distribution, where))["outcome"] == "passed"
    monkeypatch.setattr(bench.gpu_checks, "inverse_cdf", lambda p_XV, uniform_X: inverse_cdf(p_XV**0.95, uniform_X))
    assert outcome(partial(check_distribution, where))["outcome"] == "failed"


def test_a_single_wrong_draw_is_detected(monkeypatch):
    def wrong_once(weights_XV, uniform_X):
        tokens_X, total_X = inverse_cdf(weights_XV, uniform_X)
        tokens_X[7] += 1
        return tokens_X, total_X

    where = setting("cpu")
    assert outcome(partial(check_draws, where))["outcome"] == "passed"
    monkeypatch.setattr(bench.gpu_checks, "inverse_cdf", wrong_once)
    assert outcome(partial(check_draws, where))["outcome"] == "failed"


def test_a_draw_changed_by_rounding_is_not_an_error():
    """Uniforms at the boundary between two tokens, which another order of summation moves."""
    weights_XV, end = torch.ones(3, 8), 3 / 8
    uniform_X = torch.tensor([end - 1e-7, end + 1e-7, end + 1e-3])
    missed_X = missed_by(weights_XV, uniform_X, torch.tensor([3, 2, 2]))
    assert (missed_X[:2] > 0).all() and (missed_X[:2] < MISSED).all()
    assert missed_X[2] == pytest.approx(1e-3, rel=1e-3)


def test_a_wrong_fast_path_is_detected(monkeypatch):
    where = setting("cpu")
    check = partial(check_precision, where, "hp_loss", torch.bfloat16)
    assert outcome(check)["outcome"] == "passed"
    monkeypatch.setattr(ElectraEncoder, "forward", wrong_in_half_precision(ElectraEncoder.forward))
    assert outcome(check)["outcome"] == "failed"


def wrong_in_half_precision(forward):
    """Makes hidden states a third too large, as a kernel with a wrong scale would."""

    def wrong(self, *arguments):
        hidden_BLH = forward(self, *arguments)
        return hidden_BLH if hidden_BLH.dtype == torch.float32 else hidden_BLH * 1.33

    return wrong
