"""Claims about DeepSpeed's JSON: every mistake is refused with a remedy, and values of the run are filled in."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.machine import bf16_is_faster
from pretrain.engine.deepspeed_config import EngineConfig, read, resolve
from pretrain.engine.engine import Engine
from pretrain.engine.optim import OptimConfig, parameter_groups
from pretrain.job.processes import start_processes
from tests.deepspeed_values import values_of
from tests.pretrain.engine import engine_worker as worker

FOLDER = Path(__file__).resolve().parents[3] / "ds_configs"
FILES = sorted(FOLDER.glob("*.json"))
OPTIM = OptimConfig(lr=2e-4, steps=1000, warmup_steps=10, betas=(0.8, 0.9), weight_decay=0.02)


ADDITIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "offload": lambda values: values["zero_optimization"].get("offload_optimizer", {}).get("device") == "cpu",
    "recompute": lambda values: "activation_checkpointing" in values,
    "accumulate": lambda values: values["train_micro_batch_size_per_gpu"] != "auto",
    "overlap": lambda values: values["zero_optimization"].get("overlap_comm"),
}
"""The difference that the last part of a removed file's name stands for."""


def resolved(source: Any, batch_size: int = 64, world_size: int = 2, device_type: str = "cuda") -> EngineConfig:
    return resolve(
        source,
        batch_size=batch_size,
        world_size=world_size,
        device_type=device_type,
        clipping=OPTIM.gradient_clipping,
    )


def problems(source: Any, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved(source, **settings)
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_shipped_file_resolves_with_the_values_of_the_run(path: Path) -> None:
    config = resolved(path)
    assert (config.micro_batch_size, config.accumulation_steps) == (32, 1)
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 32, "gradient_accumulation_steps": 1}
    assert (sizes | {"gradient_clipping": OPTIM.gradient_clipping}).items() <= config.json.items()
    assert "auto" not in json.dumps(config.json)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_shipped_file_is_listed_and_has_the_name_of_what_it_is(path: Path) -> None:
    assert f"`{path.stem}`" in (FOLDER.parent / "docs/reference/deepspeed.md").read_text()
    values = json.loads(path.read_text())
    stage, precision, *addition = path.stem.removeprefix("zero").split("_")
    config = resolved(values)
    assert (str(config.stage), config.precision) == (stage, precision)
    assert (config.offloads, config.recomputes) == ("offload" in addition, "recompute" in addition)
    assert values["zero_optimization"]["stage"] == int(stage)
    assert [key for key in ("fp16", "bf16") if key in values] == ([] if precision == "fp32" else [precision])
    plain = values_of(f"zero{stage}_{precision}")
    assert "_".join(addition) == "_".join(name for name, has in ADDITIONS.items() if has(values) and not has(plain))


def test_a_shipped_file_is_found_in_any_folder_unless_the_user_has_one_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ds_configs/zero1_fp32.json", "zero1_fp32.json", "zero1_fp32"):
        assert read(Path(name)) == read(FOLDER / "zero1_fp32.json")
    assert "cannot read elsewhere/zero1_fp32.json" in problems(Path("elsewhere/zero1_fp32.json"))
    Path("zero1_fp32.json").write_text((FOLDER / "zero1_bf16.json").read_text())
    assert read(Path("zero1_fp32.json")) == read(FOLDER / "zero1_bf16.json")


OFFLOAD = "zero_optimization.offload_optimizer"


def test_an_override_reaches_every_level_creates_sections_and_keeps_the_rest() -> None:
    config = resolved(
        read(
            FOLDER / "zero1_fp16.json",
            (
                f"deepspeed.{OFFLOAD}.device=cpu",
                "deepspeed.train_micro_batch_size_per_gpu=4",
                "deepspeed.zero_optimization.overlap_comm=null",
                "deepspeed.activation_checkpointing={}",
                "deepspeed.fp16.loss_scale=1",
                "deepspeed.fp16.loss_scale=128",
            ),
        )
    )
    expected = resolved(FOLDER / "zero1_fp16.json").json
    expected |= {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}
    expected["activation_checkpointing"] = {}  # DeepSpeed's own implementation is not used
    expected["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    del expected["zero_optimization"]["overlap_comm"]
    expected["fp16"]["loss_scale"] = 128
    assert config.json == expected
    assert (config.micro_batch_size, config.accumulation_steps) == (4, 8)
    assert config.offloads and config.recomputes


RUNS_OWN = ("train_batch_size", "gradient_accumulation_steps", "gradient_clipping")
WRONG_OVERRIDES = [
    ("gradient_cliping=1", "gradient_cliping: unknown key; expected one of train_batch_size, "),
    ("zero_optimization.overlap_com=true", "zero_optimization.overlap_com: unknown key; expected one of stage, "),
    ("scheduler.type=WarmupLR", "scheduler: not used here; the run owns the learning rate: set optim.lr"),
    *((f"{key}=1", f"{key}: got 1, expected: input should be 'auto'") for key in RUNS_OWN),
    ("zero_optimization.stage=4", "zero_optimization.stage: got 4, expected: input should be 0, 1, 2 or 3"),
    ("zero_optimization.stage.x=1", "zero_optimization.stage: got {'x': 1}, expected: input should be 0, 1, 2 or 3"),
    ("zero_optimization=2", "zero_optimization: got 2, expected: input should be"),
    ("zero_optimization.stage=null", "zero_optimization.stage: got None, expected"),
    ("optimizer.type=AdamW", "optimizer: not used here; the run creates its own: set optim.lr, optim.betas"),
    ("zero_optimization=null", "zero_optimization: got None, expected"),
    ("fp16.loss_scale=10", "fp16.enabled: missing; give it a value"),
    ('fp16={"enabled": true, "enabled": false}', "fp16: got '{"),
    (f"{OFFLOAD}.device=nvme", f"{OFFLOAD}.device: got 'nvme', expected: input should be 'none' or 'cpu'"),
    ("bf16.enabled=True", "bf16.enabled: got 'True', expected: input should be a valid boolean"),
    (".stage=1", "'': unknown key; expected one of train_batch_size, "),
    ("=1", "'': unknown key; expected one of train_batch_size, "),
]


@pytest.mark.parametrize(("override", "said"), WRONG_OVERRIDES)
def test_a_wrong_override_is_refused_like_a_wrong_file_and_named(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(FOLDER / "zero1_fp32.json", ("deepspeed.zero_optimization.overlap_comm=true", f"deepspeed.{override}"))
    (problem,) = caught.value.problems
    assert problem.startswith(f"--set deepspeed.{said}")


@pytest.mark.parametrize(
    ("changes", "override", "said"),
    [
        *(
            ({}, other, r"--set: got '.*', expected deepspeed\.KEY=VALUE, for example deepspeed\.")
            for other in ("seed=1", "deepspeed", "deepspeed=1", "deepspeed.fp16", "")
        ),
        (
            {"gradient_cliping": 1.0},
            "deepspeed.zero_optimization.stage=2",
            r"^deepspeed config: gradient_cliping: unknown key",
        ),
    ],
)
def test_other_overrides_are_refused_and_a_mistake_in_the_file_is_attributed_to_the_file_despite_overrides(
    changes: dict[str, Any], override: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read(values_of("zero1_fp32") | changes, (override,))


def test_an_override_may_make_a_file_valid_or_invalid() -> None:
    assert resolved(read(FOLDER / "zero1_fp16.json", ("deepspeed.fp16=null",)), device_type="cpu")
    impossible = read(FOLDER / "zero1_fp16.json", ("deepspeed.zero_optimization.stage=0",))
    assert problems(impossible).startswith("deepspeed.zero_optimization.stage: 0 with fp16")


def test_every_mistake_is_reported_at_once() -> None:
    values = values_of("zero1_fp32") | {"gradient_cliping": 1.0, "optimzer": {}}
    values["zero_optimization"]["overlap_com"] = True
    said = problems(values)
    assert all(key in said for key in ("gradient_cliping", "optimzer", "zero_optimization.overlap_com"))


@pytest.mark.parametrize(("limit", "file"), [("AVX2", "zero1_fp32.json"), ("", None)])
def test_fp16_on_a_cpu_is_refused_with_the_file_that_it_computes_fastest(
    limit: str, file: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    file = file or ("zero1_bf16.json" if bf16_is_faster() else "zero1_fp32.json")
    assert file in problems(values_of("zero1_fp16"), device_type="cpu")
    assert resolved(FOLDER / file, device_type="cpu")


def changed(name: str, **sections: Any) -> dict[str, Any]:
    """A shipped file with added keys; `section__key` stands for a key of a section."""
    values = values_of(name)
    for path, value in sections.items():
        section, _, key = path.rpartition("__")
        (values.setdefault(section, {}) if section else values)[key] = value
    return values


def test_sizes_may_be_written_as_json_powers_of_ten() -> None:
    values = changed("zero1_fp32", zero_optimization__reduce_bucket_size=5e7)
    assert resolved(values).json["zero_optimization"]["reduce_bucket_size"] == 50_000_000


HALF = {"enabled": True}
REFUSED = [
    ("zero0_fp32", {"fp16": HALF}, "stage: 0 with fp16"),
    ("zero0_fp32", {"bf16": HALF}, "stage: 0 with bf16"),
    ("zero1_fp16", {"bf16": HALF}, "at most one"),
    ("zero0_fp32", {"zero_optimization__offload_optimizer": {"device": "cpu"}}, "offload_optimizer"),
    # on these, DeepSpeed fails with a bare traceback; similar values train
    ("zero1_fp32", {"zero_optimization__allgather_bucket_size": 7}, "got 7, expected: input should be a multiple of 2"),
    ("zero3_fp32", {"zero_optimization__reduce_bucket_size": 0}, "got 0, expected: input should be greater than 0"),
]
TRAINS = [
    ("zero3_fp32", {"zero_optimization__reduce_bucket_size": 1}),
    ("zero1_fp32", {"zero_optimization__allgather_bucket_size": 0, "zero_optimization__reduce_bucket_size": 1}),
]


@pytest.mark.parametrize(
    ("name", "changes", "batch_size", "said"),
    [
        *((name, changes, 64, said) for name, changes, said in REFUSED),
        *(
            ("zero1_fp32", {"train_micro_batch_size_per_gpu": micro}, size, "expected a multiple of")
            for micro, size in (("auto", 63), (5, 64), (64, 64))
        ),
        *(
            ("zero1_fp32", {"train_micro_batch_size_per_gpu": micro}, 64, "train_micro_batch_size_per_gpu")
            for micro in (0, -1, True, "many", 1.5)
        ),
    ],
)
def test_values_that_cannot_train_are_refused_as_is_a_micro_batch_that_is_no_count_or_does_not_divide_the_batch(
    name: str, changes: dict[str, Any], batch_size: int, said: str
) -> None:
    assert said in problems(changed(name, **changes), batch_size=batch_size)


@pytest.mark.parametrize(("name", "changes"), TRAINS)
def test_similar_values_are_accepted_and_train(name: str, changes: dict[str, Any]) -> None:
    values = changed(name, train_micro_batch_size_per_gpu=worker.MICRO_BATCH, **changes)
    config = resolved(values, batch_size=worker.BATCH, world_size=1, device_type="cpu")
    model = worker.small_model()
    engine = Engine(model, parameter_groups(model, OPTIM.weight_decay), config, start_processes())
    losses = worker.Runner(engine).train(range(3))
    assert losses[-1] < losses[0]
    assert engine.full_state().adam_steps == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "not valid JSON"), ("[]", "an object"), ('{"fp16": {}, "fp16": {}}', "duplicate key 'fp16'")],
)
def test_a_file_that_is_not_a_configuration_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    assert re.search(f"{path}.*{said}", problems(path))
