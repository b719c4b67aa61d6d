"""finetune/config.py: the command line and the settings of a run."""

import json
import re
from typing import Any

import pytest

from electra_sampler.foundation.command_line import parse_options
from electra_sampler.foundation.config import ConfigError
from finetune.config import (
    FinetuneConfig,
    FinetuneOptions,
    GlueConfig,
    GlueOptions,
    SquadConfig,
    SquadOptions,
)
from finetune.presets import settings_for


def test_only_given_options_override_the_presets() -> None:
    options = parse_options(GlueOptions, "", ["--model", "out", "--task", "CoLA", "RTE", "--epochs", "2"])
    assert (options.task, options.seeds, options.overrides()) == (("CoLA", "RTE"), (1, 2, 3, 4, 5), {"epochs": 2})


@pytest.mark.parametrize("options", [GlueOptions, SquadOptions])
def test_the_help_shows_the_defaults_filled_in_by_the_presets(
    options: type[FinetuneOptions], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        parse_options(options, "", ["--help"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  --")]
    shown = {words[0][2:]: " ".join(words[1:]) for words in lines}
    squad = options is SquadOptions
    for size, hidden_size in (("small", 256), ("base", 768)):
        settings = (
            settings_for(SquadConfig, "SQuAD 2.0", hidden_size, 512, {})
            if squad
            else settings_for(GlueConfig, "CoLA", hidden_size, 512, {})
        )
        for name in type(settings).model_fields.keys() & options.model_fields.keys():
            value = getattr(settings, name)
            default = "off" if value is False else str(value)
            wanted = re.compile(rf"\((?:.*\b{size} |.*{'SQuAD' if squad else 'GLUE'} )?{re.escape(default)}\b.*\)$")
            assert wanted.search(shown[name]), (name, shown[name], default)


@pytest.mark.parametrize(("name", "value"), [("learning_rate", 0), ("epochs", 0), ("layer_decay", 1.5), ("dropout", 1)])
def test_a_setting_out_of_range_is_refused(name: str, value: float) -> None:
    good = {"learning_rate": 1e-3, "epochs": 1, "batch_size": 4, "weight_decay": 0.1, "max_length": 16}
    with pytest.raises(ConfigError, match=name):
        FinetuneConfig.from_values(good | {name: value})


@pytest.mark.parametrize("seed", ["-1", str(2**63)])
def test_a_seed_outside_63_bits_is_refused(seed: str) -> None:
    with pytest.raises(ConfigError, match=rf"seeds\.1: got '{seed}', expected: input should be"):
        parse_options(GlueOptions, "", ["--model", "out", "--seeds", "0", seed])
    assert parse_options(GlueOptions, "", ["--model", "out", "--seeds", str(2**63 - 1)]).seeds == (2**63 - 1,)


@pytest.mark.parametrize(
    ("options", "task", "by_option", "by_set"),
    [
        (
            GlueOptions,
            "CoLA",
            {"learning_rate": 1e-3, "epochs": 1, "batch_size": 4, "max_length": 16, "head": "hf"},
            {"weight_decay": 0.1, "layer_decay": 0.9, "betas": (0.9, 0.98)},
        ),
        (SquadOptions, "SQuAD 1.1", {"stride": 64, "max_question": 32, "head": "xlnet", "epochs": 2}, {"dropout": 0}),
    ],
)
def test_every_override_is_a_setting(
    options: type[FinetuneOptions], task: str, by_option: dict[str, Any], by_set: dict[str, Any]
) -> None:
    given = ("deepspeed.bf16.enabled=true", *(f"{name}={json.dumps(value)}" for name, value in by_set.items()))
    found = options.from_values({"model": "out", "set": given, **by_option}).overrides()
    settings = settings_for(options.settings_class, task, 256, 512, found)
    assert settings.model_dump().items() >= (by_option | by_set).items()
