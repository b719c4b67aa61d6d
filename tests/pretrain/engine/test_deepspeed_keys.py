"""Claims about keys: every key that DeepSpeed knows is accepted or refused, and no misspelling is accepted.

DeepSpeed itself provides the list: sections that are pydantic models list their fields, and for the others we record
the keys its reader asks for.
"""

import json
import subprocess
import sys

import pytest

from electra_sampler.foundation.config import ConfigError
from pretrain.config import with_overrides
from pretrain.engine.deepspeed_config import resolve
from pretrain.engine.deepspeed_keys import REFUSED_KEYS
from pretrain.presets import PRESETS
from tests.conftest import REPOSITORY
from tests.deepspeed_values import taken

LISTING = """
import copy, json, os, sys, typing
os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed, pydantic
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

class Asked(dict):
    def __init__(self, values=()):
        super().__init__(values)
        self.asked = set(values)
    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)
    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)
    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)
    def keys(self):
        return self
    def __copy__(self):
        return self

parts = {"optimizer": Asked({"type": "AdamW", "params": Asked()}), "data_types": Asked()}
parts |= {"activation_checkpointing": Asked(), "flops_profiler": Asked()}
whole = Asked(parts | {"train_batch_size": 8})
deepspeed.runtime.config.DeepSpeedConfig(whole)
found = whole.asked | {f"{name}.{key}" for name, part in parts.items() for key in part.asked}

def fields(model, path):
    for name, field in model.model_fields.items():
        yield path + (field.alias or name)
        for part in (field.annotation, *typing.get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, pydantic.BaseModel):
                yield from fields(part, path + (field.alias or name) + ".")

for name, model in {
    "zero_optimization": DeepSpeedZeroConfig, "fp16": DeepSpeedFP16Config, "bf16": DeepSpeedBF16Config,
    "comms_logger": CommsLoggerConfig, "timers.throughput": DeepSpeedThroughputTimerConfig,
}.items():
    found |= set(fields(model, name + "."))
print(json.dumps(sorted(map(str, found))), file=sys.stderr)
"""
GONE = {"amp", "bfloat16", "zero_optimization.cpu_offload"}
"""Keys refused by name, whether or not DeepSpeed still asks for them."""


@pytest.fixture(scope="module")
def documented() -> list[str]:
    finished = subprocess.run([sys.executable, "-c", LISTING], capture_output=True, text=True, cwd=REPOSITORY)
    assert finished.returncode == 0, finished.stderr
    return list(json.loads(finished.stderr.splitlines()[-1]))


def said_of(key: str) -> str:
    """The error for a file with this key added; an empty section is its value."""
    values = json.loads((REPOSITORY / "ds_configs" / "zero1_fp16.json").read_text())
    section = values
    for name in key.split(".")[:-1]:
        section = section.setdefault(name, {})
    if not isinstance(section.get(key.split(".")[-1]), dict):
        section[key.split(".")[-1]] = {}
    try:
        resolve(values, batch_size=8, world_size=2, device_type="cuda", clipping=1.0)
    except ConfigError as error:
        return "\n".join(error.problems)
    return ""


def misspelled(key: str) -> set[str]:
    name = key.rpartition(".")[2]
    middle = len(name) // 2
    changed = {
        name[:middle] + name[middle + 1 :],
        name[:middle] + name[middle] + name[middle:],
        name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :],
        name.upper(),
        name + "s",
    }
    return {key[: len(key) - len(name)] + other for other in changed}


def test_deepspeed_provides_its_keys(documented: list[str]) -> None:
    assert len(documented) > 120
    assert {"zero_optimization.stage3_prefetch_bucket_size", "fp16.hysteresis", "gradient_clipping"} <= set(documented)


def test_every_key_that_deepspeed_knows_is_accepted_or_refused_in_one_line(documented: list[str]) -> None:
    known = set(taken())
    for key in {*documented, *REFUSED_KEYS}:
        said = said_of(key)
        first = next((part for part in parents(key) if part not in known), None)
        if first is None:
            assert "unknown key" not in said and "not used here" not in said, said
        else:
            (line,) = (line for line in said.splitlines() if line.startswith(f"deepspeed config: {first}: "))
            assert REFUSED_KEYS.get(first, "unknown key; ") in line


def parents(key: str) -> list[str]:
    """The key and its enclosing sections, the outermost first."""
    parts = key.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def test_every_misspelling_of_an_accepted_key_is_refused_with_the_right_one(documented: list[str]) -> None:
    known = set(documented) | set(taken())
    tried = 0
    for key in sorted(known):
        if not set(parents(key)[:-1]) <= set(taken()):
            continue  # the whole section is refused
        for wrong in misspelled(key) - known:
            said = said_of(wrong)
            assert f"{wrong}: unknown key" in said, wrong
            if key in set(taken()):
                name = key.rpartition(".")[2]
                assert f"did you mean '{name}'" in said or (len(name) < 4 and f" {name}," in said), said
            tried += 1
    assert tried > 400


def test_no_reason_is_given_for_a_key_that_never_existed(documented: list[str]) -> None:
    assert set(REFUSED_KEYS) - GONE <= set(documented)
    assert not set(REFUSED_KEYS) & set(taken())


@pytest.mark.parametrize("preset", PRESETS)
def test_overrides_advised_by_a_reason_are_valid_with_every_preset(preset: str) -> None:
    advised = REFUSED_KEYS["autotuning"].partition("--set ")[2].split()
    assert with_overrides(PRESETS[preset], advised).optim.steps == 50


def test_every_accepted_key_exists_in_deepspeed(documented: list[str]) -> None:
    assert set(taken()) <= set(documented)
