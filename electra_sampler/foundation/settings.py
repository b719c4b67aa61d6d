"""Formats the settings of a configuration as tables: key, value, and the field's description."""

import json
import textwrap
from collections.abc import Sequence
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from electra_sampler.foundation.config import types_of

WIDTH = 120
"""Most characters per line."""


Setting = tuple[str, str, str]
"""A key as `--set` takes it, its value (null for none), and its description."""


def settings_tables(config_class: type[BaseModel], config: BaseModel | None, section: str = "") -> list[str]:
    """Returns one text table per section and subsection of the configuration that has settings."""
    return [_aligned(rows) for rows in settings(config_class, config, section)]


def settings(config_class: type[BaseModel], config: BaseModel | None, section: str = "") -> list[list[Setting]]:
    """Returns the settings of a section, then of each subsection, without settings that allow only one value."""
    rows: list[Setting] = []
    inner: list[list[Setting]] = []
    for name, field in config_class.model_fields.items():
        value = getattr(config, name, None)
        kinds = [type(value), *types_of(field.annotation)]
        part = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), BaseModel)
        if part.model_fields:
            inner += settings(part, value, f"{section}{name}.")
        elif get_origin(field.annotation) is not Literal or len(get_args(field.annotation)) > 1:
            shown = value if isinstance(value, str) else json.dumps(to_jsonable_python(value), separators=(",", ":"))
            rows.append((section + name, shown, " ".join((field.description or "").split())))
    return [rows, *inner] if rows else inner


def _aligned(rows: Sequence[Setting]) -> str:
    keys, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = []
    for key, shown, text in rows:
        start = f"{key:<{keys}}  {shown:<{values}}  "
        lines += textwrap.wrap(start + text, WIDTH, subsequent_indent=" " * len(start), break_on_hyphens=False)
    return "\n".join(lines)
