"""The command line of every entry point, derived from a `StrictConfig`: names, types, defaults and help in one place.

A field becomes an option `--field`; marks in its `Annotated[...]` refine it. POSITIONAL makes it a required argument
without a flag. HIDDEN omits it from `--help`. There, `Group(TITLE)` starts or continues a group of options, and
`Metavar(NAME)` is the placeholder for the value. A tuple of any length may be given in parts, `--set a=1 --set b=2`;
any other option may be given only once.

Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 75 stopped on request with a checkpoint written,
130 interrupted, 141 the reader of its output has closed the pipe.
"""

import argparse
import errno
import io
import os
import select
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, TextIO, TypeVar, Union, get_args, get_origin, get_type_hints
from zipfile import BadZipFile

from pydantic.fields import FieldInfo
from safetensors import SafetensorError

from electra_sampler.foundation.config import (
    MAY_PASS,
    ConfigError,
    LocalProblem,
    StrictConfig,
    did_you_mean,
    may_pass,
    shown,
    without_secrets,
)

POSITIONAL = "command line: an argument without a flag"
HIDDEN = "command line: not shown by --help"


class Group(str):
    """Annotates an option: in `--help`, it and the options after it are listed under this title."""


class Metavar(str):
    """Annotates an option: the placeholder for its value in `--help`."""


EXIT_FAILED = 1
EXIT_BAD_USAGE = 2
LAST_TO_LEAVE = 5.0
"""Seconds that a rank that prints no error waits before it exits: the first exit makes the launcher end the others."""
SPINS = "10000"
"""Rounds that a waiting thread of libgomp spins before it sleeps, .1 to .5 ms.

On two idle cores of an Intel Xeon of 2023 a step of small takes .95 s, 1.19 without spinning and .96 with libgomp's
300,000 rounds; beside two other busy processes a step of tiny takes .55 s, .42 without and .72 with 300,000
(docs/evidence/speed.md).
"""
EXIT_INTERRUPTED = 130  # the shell's convention for a process ended by Ctrl-C: 128 + SIGINT
EXIT_UNREAD = 141  # the shell's convention for output into a closed pipe, as with `| head`: 128 + SIGPIPE

_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
"""Names of a process's number on its machine: torchrun's and this project's; Open MPI's; MPICH's and Intel's."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FIXES = {
    **dict.fromkeys(MAY_PASS, "check that disk or network, then run the same command again"),
    **dict.fromkeys(NO_ROOM, "make room there, raise its limit (quota, ulimit -f), or name another path"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "permit access to it, or name another path"),
    errno.ENAMETOOLONG: "use a shorter name",
}

Options = TypeVar("Options", bound=StrictConfig)
_METAVARS = {int: "N", float: "X", Path: "PATH", str: "NAME"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


class _Once(argparse.Action):
    """The argparse action of an option that may be given only once; argparse would silently keep the last value."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        value = True if self.nargs == 0 else values
        if hasattr(namespace, self.dest):
            first = getattr(namespace, self.dest)
            raise ConfigError(f"{self.dest}: got {first!r} and {value!r}, expected {option} only once; remove one")
        setattr(namespace, self.dest, value)


def run_command(main: Callable[[Options], int | None], options_class: type[Options], description: str | None) -> int:
    """Parses `sys.argv`, runs `main`, and returns the exit code; prints the user's problems, one per line.

    Under a launcher, all ranks find the same mistakes, so only the first rank of each machine prints a `ConfigError`.
    A `LocalProblem`, or a failure of a file, may occur on only some ranks, so every rank prints its own.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch warns about every address without a name
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be text, and must not make print fail
    try:
        try:
            code = main(parse_options(options_class, description)) or 0
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = EXIT_INTERRUPTED
        except BrokenPipeError:
            raise
        except Exception as error:
            code = _told(error)
        finally:
            written = _written()
        return code if written else code or EXIT_FAILED
    except BrokenPipeError as error:
        streams = select.poll()
        for number in (1, 2):  # output and errors
            streams.register(number, 0)
        unread = [number for number, event in streams.poll(0) if event & select.POLLERR]
        for number in unread:
            _send_nowhere(number)
        return EXIT_UNREAD if unread else _told(error)


def run_script(main: Callable[[Any], int | None]) -> NoReturn:
    """Exits with the code of `run_command` for the options that `main` takes and its module's docstring.

    A command that joined a process group ends without the interpreter's shutdown, in which its threads may crash.

    Lets PyTorch's threads wait for each other actively for about a tenth of a millisecond and then sleep, if PyTorch is
    not imported yet (`SPINS`). OMP_WAIT_POLICY is obeyed instead if it is set.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    before = _in_process_group()
    try:
        sys.exit(run_command(main, get_type_hints(main)["options"], sys.modules[main.__module__].__doc__))
    except BaseException as error:
        if before or not _in_process_group():
            raise
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
        end_here(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else EXIT_FAILED)


def _in_process_group() -> bool:
    group = sys.modules.get("torch.distributed")  # not imported here: most commands need no PyTorch
    return group is not None and bool(group.is_initialized())


def end_here(code: int) -> NoReturn:
    """Ends this process at once with this exit code, its output written, without the interpreter's shutdown."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # full disk or closed stream, already reported by whoever wrote to it
            stream.flush()
    os._exit(code)


def _told(error: Exception) -> int:
    """Prints an error's `problems_of` and returns the exit code; re-raises a bug. Only for `except` clauses."""
    problems = problems_of(error)
    if not problems:
        raise
    by_all = isinstance(error, ConfigError) and not isinstance(error, LocalProblem)
    if by_all and any(os.environ.get(name, "0") != "0" for name in _LOCAL_RANKS):
        time.sleep(LAST_TO_LEAVE)
    else:
        print_problems(problems)
    return exit_code(error)


def exit_code(error: BaseException) -> int:
    """The exit code of a command that ends with this error: 2 if the user can fix it, 1 if it is transient or a bug."""
    return EXIT_BAD_USAGE if problems_of(error) and not may_pass(error) else EXIT_FAILED


def problems_of(error: BaseException) -> tuple[str, ...]:
    """Returns what is wrong with the user's input, files or machine, one line per problem; () for a bug in the project.

    An `OSError` that names no file is a bug, unless its number says that a disk is full or a device failed.
    """
    match error:
        case ConfigError():
            return error.problems
        case OSError(errno=number, filename=name) if name is not None or number in (*NO_ROOM, *MAY_PASS):
            long = number == errno.ENAMETOOLONG
            names = [os.fsdecode(one) for one in (name, error.filename2) if isinstance(one, str | bytes | Path)]
            where = " -> ".join(shown(one) if long else one for one in names)
            fix = _FIXES.get(number or 0, "repair it, or name another path")
            return (f"{where}{': ' * bool(where)}{error.strerror}; {fix}",)
        case MemoryError():
            return (f"memory: there is not enough ({error or 'amount unknown'}); use smaller files or settings",)
        case UnicodeEncodeError():
            return (f"text: got {shown(error.object)}, expected Unicode without lone surrogates; remove them",)
        case UnicodeDecodeError():
            what = f"is not UTF-8 text (byte {error.object[error.start]:#04x} at {error.start:,})"
        case RecursionError():
            what = "is nested too deeply"
        case BadZipFile() | SafetensorError():
            what = f"cannot be read or written ({error})"
        case _:
            return ()
    return (f"{_file_at_hand(error) or 'a file'} {what}; repair it, or name another file",)


def _file_at_hand(error: BaseException) -> Path | None:
    """Returns the file that an error's note names, else the one in a variable of the innermost frame that has one."""
    if notes := getattr(error, "__notes__", ()):
        return Path(notes[0])
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    values = (value for frame in reversed(frames) for value in reversed(frame.f_locals.values()))
    return next((value for value in values if isinstance(value, Path) and os.path.isfile(value)), None)  # noqa: PTH113


def _written() -> bool:
    """Flushes stdout; if that fails, as on a full disk, prints an error and returns False."""
    try:
        print(end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _send_nowhere(1)
        print(f"{Path(sys.argv[0]).name}: error: the output cannot be written ({error.strerror})", file=sys.stderr)
        return False
    return True


def _send_nowhere(number: int) -> None:
    """Redirects file descriptor `number` to the null device, so that later prints and the flush at exit succeed."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), number)


def print_problems(problems: Iterable[str]) -> None:
    """Prints a user's mistakes to stderr, one per line."""
    for problem in problems:
        print(f"{Path(sys.argv[0]).name}: {_painted('error:', 31, sys.stderr)} {printable(problem)}", file=sys.stderr)


def print_warning(warning: str, to: TextIO | None = None) -> None:
    """Prints a one-line warning, which does not stop the command, to the stream `to`, by default stdout."""
    stream = to or sys.stdout
    print(_painted("WARNING:", 33, stream), printable(warning), file=stream)


def _painted(word: str, color: int, stream: TextIO) -> str:
    """Returns the word, in an ANSI color if `stream` is a terminal and NO_COLOR (https://no-color.org) is unset."""
    return f"\033[{color}m{word}\033[0m" if stream.isatty() and not os.environ.get("NO_COLOR") else word


def printable(text: str) -> str:
    """Returns the text as one printable line `without_secrets`; escapes control characters and non-UTF-8 bytes.

    For names chosen by others, such as files and hosts, which could otherwise move the cursor or forge a line.
    """
    text = without_secrets(text)
    escaped = (part if part.isprintable() else part.encode("unicode_escape").decode() for part in text)
    return "".join(part.replace(r"\udc", r"\x") for part in escaped)  # Python keeps a non-UTF-8 byte b as U+DC00 + b


def parse_options(
    options_class: type[Options], description: str | None, arguments: Sequence[str] | None = None
) -> Options:
    """Parses and validates the options of a command line.

    Raises:
        ConfigError: an option is unknown or given twice, or its field does not allow the value.
    """
    parser = parser_of(options_class, description)
    if arguments is None:
        arguments = sys.argv[1:]
        for command in (sys.argv, sys.orig_argv):  # which locks, dry runs and W&B show or store
            command[:] = map(without_secrets, command)
    _require_known(options_class, arguments)
    return options_class.from_values(vars(parser.parse_args(arguments)))


def parser_of(options_class: type[StrictConfig], description: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a command line: one option per field, grouped by their `Group` annotations."""
    parser = _Parser(
        description=(description or "").strip().split("\n\n")[0],
        formatter_class=partial(argparse.HelpFormatter, max_help_position=28),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)  # a reader of the help knows the option
    groups: dict[str, argparse._ArgumentGroup] = {}
    place: argparse._ActionsContainer = parser
    for name, field in options_class.model_fields.items():
        if title := next((mark for mark in field.metadata if isinstance(mark, Group)), None):
            place = groups[title] = groups.get(title) or parser.add_argument_group(title)
        _add_option(place, name, field)
    if groups:  # many options, all explained below: the usage names only those that are required
        required = (f"{action.option_strings[0]} {action.metavar} " for action in parser._actions if action.required)
        parser.usage = f"%(prog)s {''.join(required)}[OPTIONS]"
    return parser


def _require_known(options_class: type[StrictConfig], arguments: Sequence[str]) -> None:
    """Refuses unknown options, suggesting the nearest known ones, before argparse reports missing options."""
    given = [argument.partition("=")[0] for argument in takewhile("--".__ne__, arguments)]
    fields = options_class.model_fields.items()
    known = ["--help", *(f"--{name}" for name, field in fields if POSITIONAL not in field.metadata)]
    if unknown := [name for name in given if name.startswith("--") and name not in known]:
        problems = (f"{name}: unknown option{did_you_mean(name, known)}" for name in unknown)
        raise ConfigError("; ".join((*problems, "see --help")))


def _add_option(parser: argparse._ActionsContainer, name: str, field: FieldInfo) -> None:
    settings: dict[str, Any] = {"help": argparse.SUPPRESS if HIDDEN in field.metadata else _help(field)}
    annotation = _bare(field.annotation)
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)
        settings["nargs"] = "+" if Ellipsis in inner else len(inner)
        annotation = _bare(inner[0])
    if POSITIONAL in field.metadata:
        parser.add_argument(name, **settings)
        return
    if annotation is bool:
        settings["nargs"] = 0
    elif own := [mark for mark in field.metadata if isinstance(mark, Metavar)]:
        settings["metavar"] = own[0]
    elif get_origin(annotation) is Literal:
        settings["metavar"] = "|".join(str(choice) for choice in get_args(annotation))
    else:
        settings["metavar"] = _METAVARS.get(annotation, "VALUE")
    action = "extend" if settings.get("nargs") == "+" else _Once
    parser.add_argument(f"--{name}", action=action, required=field.is_required(), **settings)


def _bare(annotation: Any) -> Any:
    """Returns the annotated type without `None` and bounds."""
    if get_origin(annotation) in (Union, UnionType):
        return _bare(next(part for part in get_args(annotation) if part is not type(None)))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _help(field: FieldInfo) -> str:
    text = (field.description or "").strip().replace("%", "%%")
    default = field.default
    named = default in (None, ()) and text.endswith(")")  # the text itself names the default
    if field.is_required() or field.default_factory or named:
        return text
    if isinstance(default, bool):
        default = "on" if default else "off"
    elif default in (None, ()):
        default = "none"
    elif isinstance(default, tuple):
        default = " ".join(map(str, default))
    return f"{text} ({default})"
