"""Strict, frozen configuration: all mistakes in it are reported together in one `ConfigError`."""

import difflib
import errno
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

SHOWN = 80
"""Most characters of a value shown in an error."""
_SLASHED = r"[^/\s:@\[]+:(?!\d+/)[^\s@]*@(?:[^/\s]*@)?"
"""A login whose password contains `/`; a port is no password."""
URL = re.compile(rf"((?<![a-z0-9+])[a-z][a-z0-9+]+:/+)([^/\s]*@|{_SLASHED})?", re.IGNORECASE)
"""The beginning of a URL: scheme, and login if there is one."""
_WHOLE_URL = re.compile(URL.pattern + r"([^\s?'\"]*)(\?[^\s'\")\]]*)?", re.IGNORECASE)
_NO_TEXT = re.compile(r"[\ud800-\udfff]")
"""Surrogates: a non-UTF-8 byte as Python keeps it in a name, or half of a UTF-16 character."""
MOST = 2**53
"""The largest count allowed: JSON and floats represent all integers up to it exactly."""
Count = Annotated[int, Field(gt=0, le=MOST)]
MAY_PASS = (
    *(errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ENOLCK, errno.ENOMEM, errno.EAGAIN, errno.ETIMEDOUT),
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH),
)
"""Failures of a disk, a file server or a network, after which the same command may succeed."""


class ConfigError(Exception):
    """A mistake in the user's input or configuration, for the user to fix; entry points exit with code 2.

    Each problem is one sentence that names the field, its value, the expected value and the fix.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def refuse(problems: Iterable[str]) -> None:
    """Raises one `ConfigError` with all of the problems, if there are any."""
    if found := tuple(problems):
        raise ConfigError(*found)


class LocalProblem(ConfigError):
    """A problem that only some processes of a job may find, such as a damaged shard: each one prints its own."""


@contextmanager
def explained(
    what: str,
    fix: str,
    kinds: type[Exception] | tuple[type[Exception], ...],
    kind: type[ConfigError] = ConfigError,
) -> Iterator[None]:
    """Turns an error in the block, if of these kinds, into a `ConfigError`: `WHAT (REASON); FIX`.

    The reason is the first line of the error's message, with the name of its file unless that is in `what`. An error
    that may pass stays as it is.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, ConfigError) or may_pass(error):
            raise
        reason = repr(error) if isinstance(error, KeyError) else str(error).strip() or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror if str(error.filename or "") in what else f"{error.strerror}: {error.filename}"
        raise kind(f"{what} ({reason.splitlines()[0]}); {fix}") from None


def errors_of_hub() -> tuple[type[Exception], ...]:
    """Returns the kinds of errors of a download from the hub; readers add those of what they download."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    return OSError, ValueError, HTTPError


def may_pass(error: BaseException) -> bool:
    """Returns whether the same command may succeed later: too little memory, a failing disk, file server or network."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in MAY_PASS)


class StrictRecord(BaseModel):
    """Base of records that the project itself writes and reads back: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], source: str = "") -> Self:
        """Returns the config with these values; one `ConfigError` reports all problems, prefixed with `source`."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            prefix = f"{source}: " if source else ""
            raise ConfigError(*(prefix + _describe(cls, item) for item in error.errors())) from None


class StrictConfig(StrictRecord):
    """Base of the user's options and settings: immutable, no unknown keys; a field's docstring is its help text."""

    takes_any_name: ClassVar[bool] = False
    """True if paths may contain bytes that are not UTF-8."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_what_it_looks_like(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses values that would be misread: true as 1, or text that is not UTF-8."""
        for part in value if isinstance(value, (list, tuple)) else (value,):
            types = types_of(cls.model_fields[str(info.field_name)].annotation) if isinstance(part, (bool, str)) else ()
            if isinstance(part, bool) and bool not in types and (int in types or float in types):
                raise PydanticCustomError("no_switch", "input should be a number, not true or false")
            is_name = isinstance(part, Path) or Path in types
            if isinstance(part, (str, Path)) and _NO_TEXT.search(str(part)) and not (is_name and cls.takes_any_name):
                raise PydanticCustomError("no_text", "input should be UTF-8 text; use another name")
        return value


def _describe(config_class: type[BaseModel], item: Any) -> str:
    """Formats one pydantic error as `field: got VALUE, expected: DESCRIPTION`."""
    field = (
        ".".join(key if key.isprintable() and 0 < len(key) <= SHOWN else shown(key) for key in map(str, item["loc"]))
        or config_class.__name__
    )
    if item["type"] == "extra_forbidden":
        return f"{field}: unknown key; {_known_fields(config_class, item['loc'])}"
    if item["type"] == "missing":
        place = f" in {shown(item['input'])}" if isinstance(item["loc"][-1], int) else ""
        return f"{field}: missing{place}; give it a value"
    expected = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return expected if not item["loc"] else f"{field}: {expected}"
    choices = re.findall("'(.*?)'", expected) if item["type"] == "literal_error" else ()
    meant = did_you_mean(str(item["input"]), choices)
    return f"{field}: got {shown(item['input'])}, expected: {expected[0].lower()}{expected[1:]}{meant}"


def one_of(name: Any, known: Iterable[str]) -> str:
    """Returns the end of an error about the unknown `name`: the known names, and the nearest of them."""
    known = tuple(known)
    return f"expected one of {', '.join(map(shlex.quote, known))}{did_you_mean(name, known)}"


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """Returns the end of an error: a suggestion of the known name nearest to `name`, or nothing if none is near.

    Case and leading hyphens are ignored. For a dotted name such as `optim.lr`, the last part is enough.
    """
    names = {form.lower().lstrip("-"): one for one in known for form in (one, one.rpartition(".")[2])}
    nearest = difflib.get_close_matches(str(name).lower().lstrip("-"), names, n=1)
    return f"; did you mean {names[nearest[0]]!r}?" if nearest else ""


def without_secrets(text: str) -> str:
    """Returns a text in which no URL has a login or a query, such as a password, a key or a signature."""
    return _WHOLE_URL.sub(r"\1\3", text)


def shown(value: Any) -> str:
    """Returns a value as errors show it: on one line, control characters escaped, long values truncated."""
    text = without_secrets(repr(str(value) if isinstance(value, Path) else value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text):,} characters)"


def counted(count: float, noun: str, plural: str = "") -> str:
    """Returns a count with its noun, in the plural unless it is 1: `1 shard`, `2,000 shards`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def few(problems: Sequence[str], others: str, most: int = 5) -> list[str]:
    """Returns the first of the problems and, if there are more than `most`, one that counts the `others`."""
    left = len(problems) - most
    return [*problems[:most], *([f"{left:,} more {others}"] if left > 0 else [])]


def parse_override(override: str) -> tuple[str, Any] | None:
    """Parses `key.path=value` of `--set` into path and value, JSON if possible, else text; None without a `=`."""
    path, equals, text = override.partition("=")
    if not equals:
        return None
    try:
        return path, json.loads(text, object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError):
        return path, text


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` that refuses duplicate keys, of which `json.loads` would silently keep the last."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"duplicate key {shown(key)}")
        values[key] = value
    return values


def types_of(annotation: Any) -> list[Any]:
    """Returns a type annotation and, recursively, all types inside it."""
    types = [annotation]
    for part in types:
        types += get_args(part)
    return types


def _known_fields(config_class: type[BaseModel], location: tuple[Any, ...]) -> str:
    for part in location[:-1]:
        field = config_class.model_fields.get(str(part))
        sections = [kind for kind in types_of(field and field.annotation) if isinstance(kind, type)]
        config_class = next((kind for kind in sections if issubclass(kind, BaseModel)), BaseModel)
    return one_of(location[-1], config_class.model_fields) if config_class.model_fields else "remove it"
