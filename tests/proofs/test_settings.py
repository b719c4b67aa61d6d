"""Claims about extreme values of every key that a user can set: they are refused in one line, or they work.

Refused values are refused before anything of their size is allocated; accepted ones are really run.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_sampler.foundation.command_line import parse_options
from electra_sampler.foundation.config import ConfigError, StrictConfig
from finetune.config import GlueConfig, GlueOptions, SquadConfig, SquadOptions
from finetune.presets import settings_for
from pretrain.engine.deepspeed_config import EngineConfig, read, resolve
from pretrain.engine.engine import Engine
from pretrain.engine.optim import OptimConfig, parameter_groups
from pretrain.evaluate import EvaluateOptions
from pretrain.job.processes import start_processes
from pretrain.job.watchdog import Watchdog
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import make_plan
from pretrain.presets import PRESETS, objective_config
from pretrain.runs.models import build_model
from pretrain.training.start import build_training, measured_machine
from tests.conftest import REPOSITORY
from tests.deepspeed_values import taken, values_of
from tests.pretrain.engine import engine_worker as worker
from tests.proofs.extremes import TEXTS, assert_clear

FP32 = REPOSITORY / "ds_configs/zero1_fp32.json"
OPTIM = OptimConfig(lr=2e-4, steps=1000, warmup_steps=10)
START = ("optim.steps=2", "optim.warmup_steps=1", "batch_size=4", "evaluate_sequences=4", "histogram_every=1")


def keys_of(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from keys_of(value, f"{path}{key}.")
        else:
            yield path + key


RUN_KEYS = list(keys_of(PRESETS["tiny"].model_dump() | {"objective": objective_config("hp_dist").model_dump()}))
LENGTHENING = ("optim.steps", "batch_size")
"""Keys for which a large value means a long run, so they are only planned."""


def options(shards: Path, folder: Path, objective: str, *overrides: str, **changes: Any) -> RunOptions:
    values = {"preset": "tiny", "data": (shards,), "output": folder / "run", "deepspeed_config": FP32, **changes}
    return RunOptions.from_values(values | {"set": overrides, "objective": objective})


def objective_of(key: str) -> str:
    """An objective that uses the key."""
    return "hp_dist" if key == "objective.mixture" else "hp_loss"


@pytest.mark.parametrize("key", RUN_KEYS)
def test_every_setting_of_a_run_is_refused_in_one_line_or_planned(
    key: str, shards_folder: Path, tmp_path: Path
) -> None:
    for text in TEXTS:
        try:
            chosen = options(shards_folder, tmp_path, objective_of(key), f"{key}={text}", preset="small", dry_run=True)
            plan = make_plan(chosen)
        except ConfigError as error:
            assert_clear(error, key.rpartition(".")[2])
            continue
        assert json.loads(plan.run.model_dump_json()) == json.loads(json.dumps(plan.run.model_dump()))
        if key.startswith("model."):
            with torch.device("meta"):
                build_model(plan.description)


@pytest.mark.long
@pytest.mark.parametrize("key", [key for key in RUN_KEYS if key not in LENGTHENING])
def test_every_accepted_setting_trains(key: str, shards_folder: Path, tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        folder = tmp_path / str(number)
        start = [part for part in START if not part.startswith(f"{key}=")]
        try:
            plan = make_plan(options(shards_folder, folder, objective_of(key), *start, f"{key}={text}"))
        except ConfigError:
            continue
        world = start_processes()
        watchdog = Watchdog(world, 600, folder)
        try:
            assert build_training(plan, measured_machine(plan, world), world, watchdog).train() == 0, text
        except FloatingPointError:
            assert key == "optim.lr", "only a learning rate may make a run diverge"


NEEDED = {
    "fp16": "deepspeed.fp16.enabled=false",
    "bf16": "deepspeed.bf16.enabled=false",
    "offload_optimizer": "deepspeed.zero_optimization.offload_optimizer.device=none",
}
"""Other values that a section needs besides the tested key."""


def as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def resolved(key: str) -> Iterator[EngineConfig]:
    """The resolved configurations of a key's accepted values; each refused value must give one clear line."""
    *sections, name = key.split(".")
    needed = [NEEDED[section] for section in sections if section in NEEDED]
    for text in TEXTS:
        try:
            config = read(values_of("zero1_fp32"), [*needed, f"deepspeed.{key}={text}"])
            yield resolve(
                config,
                batch_size=worker.BATCH,
                world_size=1,
                device_type="cpu",
                clipping=OPTIM.gradient_clipping,
            )
        except ConfigError as error:
            assert_clear(error, name, "batch_size")


KEYS = [*taken()]


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_a_deepspeed_file_is_refused_in_one_line_or_accepted(key: str) -> None:
    assert len(list(resolved(key))) < len(TEXTS), "some of them are refused"


@pytest.mark.long
@pytest.mark.parametrize("key", KEYS)
def test_accepted_values_of_a_deepspeed_file_start_an_engine(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for config in resolved(key):
        model = worker.small_model()
        engine = Engine(model, parameter_groups(model, OPTIM.weight_decay), config, start_processes())
        assert len(worker.Runner(engine).train(range(1))) == 1


@pytest.mark.parametrize("text", ["{" * 100_000, "\ud800", "[" * 100_000, "9" * 5000, '{"a\\n": 1}', "\x00"])
def test_a_deepspeed_file_with_arbitrary_content_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text, errors="surrogatepass")
    with pytest.raises(ConfigError) as caught:
        resolve(path, batch_size=8, world_size=1, device_type="cpu", clipping=OPTIM.gradient_clipping)
    assert_clear(caught.value, "ds.json")


OPTIONS: list[tuple[type[StrictConfig], dict[str, list[str]]]] = [
    (GlueOptions, {"model": ["m"]}),
    (SquadOptions, {"model": ["m"]}),
    (EvaluateOptions, {"runs": ["r"]}),
    (RunOptions, {}),
]


@pytest.mark.parametrize(
    ("options_class", "name"),
    [(options_class, name) for options_class, _ in OPTIONS for name in options_class.model_fields],
)
def test_every_option_is_refused_in_one_line_or_accepted(options_class: type[StrictConfig], name: str) -> None:
    needed = {**dict(OPTIONS)[options_class]}
    for text in TEXTS:
        given = needed | (
            {name: []} if options_class.model_fields[name].annotation in (bool, bool | None) else {name: [text]}
        )
        words = [part for key, values in given.items() for part in (*([] if key == "runs" else [f"--{key}"]), *values)]
        try:
            chosen = parse_options(options_class, "", words)
            if isinstance(chosen, GlueOptions):
                settings_for(GlueConfig, "CoLA", 256, 512, chosen.overrides())
            elif isinstance(chosen, SquadOptions):
                settings_for(SquadConfig, "SQuAD 2.0", 256, 512, chosen.overrides())
        except ConfigError as error:
            assert_clear(error, name, text[:20], "max_length")


FINETUNED = {"learning_rate": 1e-3, "epochs": 1, "batch_size": 4, "weight_decay": 0.1, "max_length": 16}
SQUAD = FINETUNED | {"max_question": 8, "stride": 8, "max_answer": 8, "n_best": 2}


@pytest.mark.parametrize(
    ("config", "name"), [(config, name) for config in (GlueConfig, SquadConfig) for name in config.model_fields]
)
def test_every_setting_of_fine_tuning_is_refused_in_one_line_or_accepted_by_the_optimizer(
    config: type[GlueConfig | SquadConfig], name: str
) -> None:
    for text in TEXTS:
        try:
            settings = config.from_values((FINETUNED if config is GlueConfig else SQUAD) | {name: as_json(text)})
        except ConfigError as error:
            assert_clear(error, name)
            continue
        shared = settings.model_dump(include=OptimConfig.model_fields.keys() - {"learning_rate"})
        warmup_steps = int(settings.warmup_fraction * 10)
        assert OptimConfig(lr=settings.learning_rate, steps=10, warmup_steps=warmup_steps, **shared), "as pre-training"
