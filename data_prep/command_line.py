"""The command line of every entry point, derived from a `StrictConfig`: names, types, defaults and help in one place.

A field is an option `--field`; `Annotated[..., POSITIONAL]` makes it an argument without a flag and
`Annotated[..., HIDDEN]` leaves it out of `--help`. A tuple of any length may come in parts, `--set a=1 --set b=2`; any
other option stands there once. Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 75 stopped on request with a
checkpoint written.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from data_prep.config import ConfigError, LocalProblem, StrictConfig

POSITIONAL = "command line: an argument without a flag"
HIDDEN = "command line: not shown by --help"

EXIT_BAD_USAGE = 2
EXIT_INTERRUPTED = 130  # the shell's convention for a process ended by Ctrl-C: 128 + SIGINT

Options = TypeVar("Options", bound=StrictConfig)
_METAVARS = {int: "N", float: "X", Path: "PATH", str: "NAME"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


class _Once(argparse.Action):
    """Keeps the value of an option that may stand there once: the last of several would silence the others."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        value = True if self.nargs == 0 else values
        if hasattr(namespace, self.dest):
            first = getattr(namespace, self.dest)
            raise ConfigError(f"{self.dest}: got {first!r} and {value!r}, expected {option} once; leave one out")
        setattr(namespace, self.dest, value)


class _OneLineHelp(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


def run_command(main: Callable[[Options], int | None], options_class: type[Options], description: str | None) -> int:
    """Parses `sys.argv`, runs `main`, and returns the process's exit code; a `ConfigError` prints one line each.

    Under a launcher the first rank of each machine speaks for the others there, which find the same mistakes; a
    `LocalProblem` may be another's.
    """
    try:
        return main(parse_options(options_class, description)) or 0
    except ConfigError as error:
        speaks = isinstance(error, LocalProblem) or os.environ.get("LOCAL_RANK", "0") == "0"
        for problem in error.problems if speaks else ():
            print(f"{Path(sys.argv[0]).name}: error: {problem}", file=sys.stderr)
        return EXIT_BAD_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def parse_options(
    options_class: type[Options], description: str | None, arguments: Sequence[str] | None = None
) -> Options:
    """The validated options of a command line.

    Raises:
        ConfigError: an unknown option, one given twice, or a value outside what its field allows.
    """
    parser = _Parser(
        description=(description or "").strip().split("\n\n")[0],
        formatter_class=_OneLineHelp,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for name, field in options_class.model_fields.items():
        _add_option(parser, name, field)
    return options_class.from_values(vars(parser.parse_args(arguments)))


def _add_option(parser: argparse.ArgumentParser, name: str, field: FieldInfo) -> None:
    settings: dict[str, Any] = {"help": argparse.SUPPRESS if HIDDEN in field.metadata else _help(field)}
    annotation = _bare(field.annotation)
    if annotation is bool:
        parser.add_argument(f"--{name}", action=_Once, nargs=0, **settings)
        return
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)
        settings["nargs"] = "+" if Ellipsis in inner else len(inner)
        annotation = _bare(inner[0])
    if get_origin(annotation) is Literal:
        settings["metavar"] = "|".join(str(choice) for choice in get_args(annotation))
    elif POSITIONAL not in field.metadata:
        settings["metavar"] = _METAVARS.get(annotation, "VALUE") if annotation else "VALUE"
    if POSITIONAL not in field.metadata:
        action = "extend" if settings.get("nargs") == "+" else _Once
        parser.add_argument(f"--{name}", action=action, required=field.is_required(), **settings)
        return
    if not field.is_required():
        settings["nargs"] = "*" if settings.get("nargs") == "+" else "?"
    parser.add_argument(name, **settings)


def _bare(annotation: Any) -> Any:
    """The type itself, without `None` and without bounds."""
    if get_origin(annotation) in (Union, UnionType):
        return _bare(next(part for part in get_args(annotation) if part is not type(None)))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _help(field: FieldInfo) -> str:
    text = (field.description or "").strip().replace("%", "%%")
    default = field.default
    if field.is_required() or default in (None, (), False):
        return text
    shown = " ".join(str(part) for part in default) if isinstance(default, tuple) else default
    return f"{text} ({shown})"
