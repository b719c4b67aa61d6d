"""Claims about the interface of objectives and about their registry."""

import os
from pathlib import Path
from typing import get_args

import pytest

from electra_sampler.foundation.config import ConfigError
from pretrain.method.objective import Objective, PredictionConfig
from pretrain.method.registry import load_objective, objective_class
from tests.pretrain.conftest import OBJECTIVES, SMALL_MODEL, VOCABULARY

PREDICTING = [name for name in OBJECTIVES if issubclass(objective_class(name).Config, PredictionConfig)]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_in_the_registry_implements_the_interface(name: str) -> None:
    trained = objective_class(name)
    assert issubclass(trained, Objective)
    assert get_args(trained.Config.model_fields["name"].annotation) == (name,)
    assert trained.Config.from_values({}).name == name
    assert trained.title and trained.exports["."][0].startswith("ElectraFor")
    assert trained.encoders(SMALL_MODEL, VOCABULARY)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        *(
            (name, {"importance_weighting": True, "forbid_original": True}, "importance_weighting: true with forbid_")
            for name in ("hp_loss", "hp_dist", "electra", "hp_loss_power", "oracle")
        ),
        ("hp_loss", {"mixture": 0.1}, "mixture: unknown key; expected one of name, gamma"),
        ("electra", {"mixture": 0.1}, "mixture: unknown key"),
        ("electra", {"lambda1": 1.0}, "lambda1: unknown key; expected one of name, gamma"),
        ("electra", {"detach_sampler_input": True}, "detach_sampler_input: unknown key"),
        ("mlm", {"temperature": 2.0}, "temperature: unknown key"),
        ("mlm", {"lambda2": 2.0}, "lambda2: unknown key"),
        ("hp_dist", {"mixture": 1.0}, "mixture: got 1.0, expected"),
        ("uniform", {"gamma": 1.0}, "gamma: unknown key; expected one of name, lambda2, temperature, forbid_original"),
        ("oracle", {"lambda1": 1.0}, "lambda1: unknown key"),
        ("oracle", {"candidates": 0}, "candidates: got 0, expected"),
        *((name, {"exponent": 6.0}, "exponent: got 6.0, expected") for name in ("hp_loss_power", "oracle")),
        *((name, {"mask_keep_fraction": 1.0}, "mask_keep_fraction: got 1.0, expected") for name in PREDICTING),
        *((name, {"gamma": 101.0}, "gamma: got 101.0, expected 0, a positive number up to 100") for name in PREDICTING),
    ],
)
def test_switches_that_do_not_fit_the_objective_are_refused(name: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        objective_class(name).Config.from_values(values)


def test_all_wrong_switches_are_reported_at_once() -> None:
    wrong = {"gamma": -1.0, "importance_weighting": True, "forbid_original": True, "mixture": 0.1}
    with pytest.raises(ConfigError) as error:
        objective_class("electra").Config.from_values(wrong)
    assert len(error.value.problems) == 3


@pytest.mark.parametrize(
    ("name", "found"),
    [("missing", "does not exist"), ("pipe", "is a folder, a pipe or a device"), ("device", "is a folder, a pipe")],
)
def test_a_sampler_is_read_from_a_file_only(name: str, found: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "device.py").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=rf"objective: \S*{name}\.py {found}.*; expected a file of Python"):
        load_objective(f"{tmp_path / name}.py:Mine")
