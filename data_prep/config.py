"""How the project reads configuration: strict, frozen, and every mistake reported as one `ConfigError`."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError


class ConfigError(Exception):
    """A mistake in the user's input or configuration, to be mended by the user; entry points exit with code 2.

    Each problem is one sentence that names the field, its value, what was expected and how to mend it.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class LocalProblem(ConfigError):
    """What one process of a job may meet alone, such as a damaged shard: each that does speaks for itself."""


class StrictConfig(BaseModel):
    """Base of every configuration: immutable, unknown keys refused, a field's docstring is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], source: str = "") -> Self:
        """Validates `values`, collecting every problem into one `ConfigError`; `source` names where they stood."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            prefix = f"{source}: " if source else ""
            raise ConfigError(*(prefix + _describe(cls, item) for item in error.errors())) from None


def _describe(config_class: type[BaseModel], item: Any) -> str:
    """One pydantic error as `field: got value, expected what`."""
    field = ".".join(str(part) for part in item["loc"]) or config_class.__name__
    if item["type"] == "extra_forbidden":
        return f"{field}: unknown key; {_known_fields(config_class, item['loc'])}"
    if item["type"] == "missing":
        return f"{field}: missing; give it a value"
    expected = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return expected if not item["loc"] else f"{field}: {expected}"
    return f"{field}: got {item['input']!r}, expected: {expected[0].lower()}{expected[1:]}"


def _known_fields(config_class: type[BaseModel], location: tuple[Any, ...]) -> str:
    for part in location[:-1]:
        field = config_class.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return "remove it"
        config_class = field.annotation
    return "expected one of " + ", ".join(config_class.model_fields)
