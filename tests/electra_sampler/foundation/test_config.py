"""Claims about strict configuration and its error."""

import errno
from typing import Any, Literal, Self

import pytest
from pydantic import Field, ValidationError, model_validator

from electra_sampler.foundation.config import ConfigError, StrictConfig, counted, explained, few, one_of


class Inner(StrictConfig):
    rate: float = Field(default=0.1, gt=0)


class Outer(StrictConfig):
    steps: int
    """number of steps"""
    mode: Literal["fast", "slow"] = "fast"
    inner: Inner = Inner()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.steps == 13:
            raise ValueError("steps: got 13, expected a luckier number; take 14")
        return self


def problems(values: dict[str, Any], source: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Outer.from_values(values, source)
    return list(caught.value.problems)


def test_good_values_make_a_config() -> None:
    config = Outer.from_values({"steps": "5", "inner": {"rate": 0.5}})
    assert (config.steps, config.mode, config.inner.rate) == (5, "fast", 0.5)


def test_a_config_is_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Outer(steps=1).steps = 2


def test_a_docstring_is_the_help_of_its_field() -> None:
    assert Outer.model_fields["steps"].description == "number of steps"


def test_every_problem_is_reported_at_once() -> None:
    assert len(problems({"mode": "medium", "inner": {"rate": -1}, "colour": "red"})) == 4


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"steps": 1, "inner": {"rate": -1}}, "inner.rate: got -1, expected: input should be greater than 0"),
        *(  # JSON has no notation for them, so they would be read back as null
            (
                {"steps": 1, "inner": {"rate": odd}},
                f"inner.rate: got {odd!r}, expected: input should be a finite number",
            )
            for odd in (float("inf"), float("nan"), "inf")
        ),
        ({}, "steps: missing; give it a value"),
        ({"steps": 13}, "steps: got 13, expected a luckier number; take 14"),  # a rule over several fields
        ({"steps": 1, "step": 2}, "step: unknown key; expected one of steps, mode, inner; did you mean 'steps'?"),
        ({"steps": 1, "inner": {"rat": 2}}, "inner.rat: unknown key; expected one of rate; did you mean 'rate'?"),
    ],
)
def test_a_problem_names_its_field_at_any_level_its_value_and_what_was_expected(
    values: dict[str, Any], problem: str
) -> None:
    assert problems(values) == [problem]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("optim.warm_up", "optim.warmup"),
        ("warmup", "optim.warmup"),  # the last part of the name is enough
        ("cola", "CoLA"),
        ("HP_Loss Focal", "HP_Loss + Focal"),
        ("x", None),
        (None, None),
    ],
)
def test_an_unknown_name_is_answered_with_all_names_and_the_nearest(name: str | None, meant: str | None) -> None:
    known = ("optim.warmup", "CoLA", "HP_Loss + Focal")
    question = f"; did you mean {meant!r}?" if meant else ""
    assert one_of(name, known) == f"expected one of optim.warmup, CoLA, 'HP_Loss + Focal'{question}"


def test_one_thing_is_singular() -> None:
    found = [counted(0, "shard"), counted(1, "shard"), counted(2000, "shard"), counted(2, "process", "processes")]
    assert found == ["0 shards", "1 shard", "2,000 shards", "2 processes"]


def test_the_source_of_the_values_precedes_each_problem() -> None:
    assert problems({"steps": "x"}, source="run.json")[0].startswith("run.json: steps: got 'x'")


def test_a_config_error_prints_as_its_problems() -> None:
    assert str(ConfigError("a: wrong", "b: missing")) == "a: wrong; b: missing"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space", "a/file"), "No space"),
        (OSError(28, "No space", "a/other"), "No space: a/other"),
        (OSError("cut short"), "cut short"),
        (KeyError("text"), "KeyError('text')"),
        (ValueError("first line\nsecond"), "first line"),
        (EOFError(), "EOFError"),
    ],
)
def test_an_error_about_a_file_says_what_happened_and_how_to_fix_it(error: Exception, reason: str) -> None:
    with pytest.raises(ConfigError) as told, explained("input: cannot read a/file", "replace it", Exception):
        raise error
    assert told.value.problems == (f"input: cannot read a/file ({reason}); replace it",)


def test_other_errors_those_that_may_pass_and_those_explained_already_pass_as_they_are() -> None:
    for error in (ConfigError("a: wrong"), OSError(errno.EIO, "may pass", "file"), TypeError("a bug")):
        with pytest.raises(type(error)) as told, explained("input: cannot read it", "replace it", OSError):
            raise error
        assert told.value is error


def test_problems_beyond_the_first_are_counted() -> None:
    assert few(["a", "b"], "rows", 2) == ["a", "b"]
    assert few(["a", "b", "c", "d"], "rows", 2) == ["a", "b", "2 more rows"]
