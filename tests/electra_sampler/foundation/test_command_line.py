"""Claims about the command line generated from a configuration."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from zipfile import ZipFile

import pytest
from pydantic import Field
from safetensors.torch import load_file

from electra_sampler.foundation.command_line import (
    HIDDEN,
    POSITIONAL,
    Group,
    Metavar,
    exit_code,
    parse_options,
    print_warning,
    printable,
    run_command,
    run_script,
)
from electra_sampler.foundation.config import ConfigError, StrictConfig
from tests.conftest import REPOSITORY


class Options(StrictConfig):
    steps: int = 10
    """number of steps, 100% of them"""
    ngram: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """chances of the lengths"""
    mode: Literal["fast", "slow"] = "fast"
    """how to run"""
    vocab: Path | None = None
    """vocabulary"""
    dry_run: bool = False
    """start nothing"""
    secret: Annotated[int, HIDDEN] = 7
    """for tests"""


class Grouped(StrictConfig):
    model: Annotated[str, Group("the run")]
    """model to load"""
    seed: int = 0
    """of every choice"""
    output: Annotated[Path | None, Group("data")] = None
    """folder (runs/NAME)"""
    row: str | None = None
    """of the table"""
    set: Annotated[tuple[str, ...], Group("the run"), Metavar("KEY=VALUE")] = ()
    """overrides"""


class Several(StrictConfig):
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = (1, 2)
    """one run a seed"""
    data: tuple[Path, ...]
    """folders of shards"""


class Needs(StrictConfig):
    runs: Annotated[tuple[Path, ...], POSITIONAL]
    """run folders"""
    model: str
    """model to load"""


Given = TypeVar("Given", bound=StrictConfig)


def parse(options: type[Given], *arguments: str) -> Given:
    return parse_options(options, "Does something.\n\nAt length.", arguments)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        pytest.param("", Options(), id="defaults"),
        pytest.param(
            "--steps 3 --ngram .5 .3 .2 --mode slow --vocab v --dry_run --secret 1",
            Options(steps=3, ngram=(0.5, 0.3, 0.2), mode="slow", vocab=Path("v"), dry_run=True, secret=1),
            id="every kind",
        ),
    ],
)
def test_an_option_has_its_default_or_is_read_with_its_type(arguments: str, options: Options) -> None:
    assert parse(Options, *arguments.split()) == options


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--stpes 3", "--stpes: unknown option; did you mean '--steps'?; see --help"),
        ("--step 3", "--step: unknown option; "),  # no abbreviations: they break when an option is added
        ("--Mode=fast --x", "--Mode: unknown option; did you mean '--mode'?; --x: unknown option; see --help"),
        ("--steps many", "steps: got 'many'"),
        ("--mode fats", "'fast' or 'slow'; did you mean 'fast'?"),
        ("--mode medium", "'fast' or 'slow'"),
        ("--ngram 1 0", "--ngram"),
        ("--steps 3 --steps 4", "steps: got '3' and '4', expected --steps only once; remove one"),
        ("--steps=3 --steps=3", "steps: got '3' and '3', expected --steps only once"),
        ("--ngram 1 0 0 --ngram 0 1 0", "ngram: got ['1', '0', '0'] and ['0', '1', '0'], expected --ngram only once"),
        ("--dry_run --mode fast --dry_run", "dry_run: got True and True, expected --dry_run only once"),
        ("--secret 1 --secret 2", "secret: got '1' and '2'"),
    ],
)
def test_an_argument_that_is_wrong_or_given_twice_is_one_problem_that_names_it_and_the_nearest_known_name(
    arguments: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(Options, *arguments.split())
    assert len(caught.value.problems) == 1
    assert problem in caught.value.problems[0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("run", "required.*--model"),
        ("--model m", "required.*runs"),
        ("run --modle m", r"^--modle: unknown option; did you mean '--model'\?"),
    ],
)
def test_an_option_without_default_is_required_and_an_unknown_one_is_named_before_it(
    arguments: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(Needs, *arguments.split())


@pytest.mark.parametrize(("arguments", "second"), [("a b --model m", "b"), ("--model m -- a --b", "--b")])
def test_arguments_without_a_flag_are_read_with_their_type_and_after_two_hyphens_all_are(
    arguments: str, second: str
) -> None:
    assert parse(Needs, *arguments.split()) == Needs(runs=(Path("a"), Path(second)), model="m")


def test_a_repeated_list_option_is_concatenated_and_replaces_the_default() -> None:
    options = parse(Several, "--data", "a", "b", "--seeds", "3", "--data", "c", "--seeds", "4")
    assert options == Several(seeds=(3, 4), data=(Path("a"), Path("b"), Path("c")))
    assert parse(Several, "--data", "a").seeds == (1, 2)


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[type[StrictConfig]], str]:
    def printed(options: type[StrictConfig]) -> str:
        with pytest.raises(SystemExit) as caught:
            parse(options, "--help")
        assert caught.value.code == 0
        return capsys.readouterr().out

    monkeypatch.setenv("COLUMNS", "100")
    return printed


Help = Callable[[type[StrictConfig]], str]


def test_help_shows_only_the_first_paragraph_of_the_description(help_of: Help) -> None:
    assert help_of(Options).split("\n\n")[1] == "Does something."


def test_help_has_each_option_once_with_its_docstring_and_default_unless_the_text_already_names_it(
    help_of: Help,
) -> None:
    lines = [line.strip() for options in (Options, Grouped) for line in help_of(options).splitlines()]
    for option in ("--mode fast|slow", "--vocab PATH", "--dry_run", "--seed N", "--row NAME", "--output PATH"):
        assert sum(line.startswith(option) for line in lines) == 1
    of_options = ("number of steps, 100% of them (10)", "lengths (0.8 0.1 0.1)", "vocabulary (none)", "nothing (off)")
    for end in (*of_options, "of every choice (0)", "of the table (none)", "(runs/NAME)"):
        assert sum(line.endswith(end) for line in lines) == 1


def test_the_bounds_of_a_list_do_not_hide_its_type_from_the_help(help_of: Help) -> None:
    assert "--seeds N [N ...]" in help_of(Several)


def test_options_are_grouped_under_the_titles_of_their_annotations(help_of: Help) -> None:
    *_, run, data = help_of(Grouped).split("\n\n")
    assert run.splitlines()[0] == "the run:" and data.splitlines()[0] == "data:"
    assert all(option in run for option in ("--model NAME", "--seed N", "--set KEY=VALUE [KEY=VALUE ...]"))
    assert all(option in data for option in ("--output PATH", "--row NAME"))


def test_a_hidden_option_is_not_in_the_help(help_of: Help) -> None:
    assert "secret" not in help_of(Options)


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["folder/program.py"])


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (75, 75)])
def test_the_programs_own_exit_code_is_kept_and_none_is_0(returned: int | None, code: int) -> None:
    assert run_command(lambda options: returned, Options, "") == code


def failing(error: BaseException) -> Callable[[Options], None]:
    """A command that fails with this error."""

    def command(options: Options) -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("a: wrong", "b: missing"), 2, "program.py: error: a: wrong\nprogram.py: error: b: missing\n"),
        (
            ConfigError("input: a\n\x1b[31m\udcff is not there"),
            2,
            "program.py: error: input: a\\n\\x1b[31m\\xff is not there\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_a_failure_has_its_exit_code_and_a_printable_line_per_problem_without_a_traceback(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(failing(error), Options, "") == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("name", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"])
@pytest.mark.parametrize(("local_rank", "lines"), [("0", 1), ("1", 0)])
def test_under_a_launcher_only_one_rank_per_machine_prints_the_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, local_rank: str, lines: int
) -> None:
    monkeypatch.setattr("electra_sampler.foundation.command_line.LAST_TO_LEAVE", 0.0)
    monkeypatch.setenv(name, local_rank)
    assert run_command(failing(ConfigError("a: wrong")), Options, "") == 2
    assert len(capsys.readouterr().err.splitlines()) == lines


def test_a_bad_option_exits_with_2_before_the_program_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["program.py", "--colour=red"])
    assert run_command(failing(AssertionError("started")), Options, "") == 2
    assert capsys.readouterr().err == "program.py: error: --colour: unknown option; see --help\n"


@pytest.mark.parametrize(
    "bug",
    [
        *(ZeroDivisionError(), KeyError("a"), OSError("no number, no file"), OSError(errno.ENOENT, "no file named")),
        BrokenPipeError("a socket of the program's own"),
    ],
)
def test_any_other_exception_is_a_bug_and_keeps_its_traceback(bug: Exception) -> None:
    with pytest.raises(type(bug)):
        run_command(failing(bug), Options, "")


def read_as(read: Callable[[Path], object], content: bytes) -> Callable[[Any], None]:
    """Returns a command that reads a file of this content, named in a folder of its own."""

    def command(options: Any) -> None:
        path = options.vocab / "file"
        path.write_bytes(content)
        read(path)

    return command


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (lambda options: (options.vocab / "no").read_text(), "{}/no: No such file or directory; repair it"),
        (lambda options: options.vocab.read_text(), "{}: Is a directory; repair it"),
        (lambda options: (options.vocab / ("n" * 5000)).read_text(), "... (5,"),
        (lambda options: options.vocab.rename("/proc/1"), "{} -> /proc/1: "),
        (read_as(lambda path: (path / "in").read_text(), b""), "{}/file/in: Not a directory; "),
        (read_as(lambda path: path.read_text(), b"caf\xe9"), "{}/file is not UTF-8 text (byte 0xe9 at 3); "),
        (read_as(lambda path: json.loads(path.read_text()), b"[" * 100_000), "{}/file is nested too deeply; "),
        (read_as(lambda path: ZipFile(path), b"PK"), "{}/file cannot be read or written (File is not a zip file); "),
        (read_as(lambda path: load_file(path), b"\xff" * 9), "{}/file cannot be read or written (Error while deser"),
        (
            lambda options: json.loads(r'"a\ud800"').encode(),
            r"text: got 'a\ud800', expected Unicode without lone surrogates; ",
        ),
    ],
)
def test_what_a_users_file_can_raise_is_one_line_that_names_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[[Any], None],
    said: str,
) -> None:
    (tmp_path / "é \n").mkdir()
    monkeypatch.setattr("sys.argv", ["program.py", "--vocab", str(tmp_path / "é \n")])
    assert run_command(command, Options, "") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said.format(str(tmp_path / r"é \n")) in line


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 2, "No space left on device; make room"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe", "pipe"), 2, "pipe: Broken pipe; repair it"),
        (OSError(errno.EROFS, "Read-only file system", "out"), 2, "out: Read-only file system; permit access"),
        (OSError(errno.EIO, "Input/output error"), 1, "Input/output error; check that disk or network, then "),
        (OSError(errno.ESTALE, "Stale file handle", "shard"), 1, "shard: Stale file handle; check"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), 1, "Connection reset by peer; check"),
        (MemoryError("Unable to allocate 7 TiB"), 1, "memory: there is not enough (Unable to allocate 7 TiB); "),
    ],
)
def test_a_failure_that_may_pass_has_the_exit_code_on_which_a_supervisor_tries_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, said: str
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")  # it may fail alone: it says so itself
    assert (run_command(failing(error), Options, ""), exit_code(error)) == (code, code)
    assert capsys.readouterr().err.startswith(f"program.py: error: {said}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("caf\u00e9 \u65e5\u672c \U0001f600 'x' \\", "caf\u00e9 \u65e5\u672c \U0001f600 'x' \\"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[2J\x00\x7f\x9b", r"\x1b[2J\x00\x7f\x9b"),
        ("\u202egpj.exe\u2028", r"\u202egpj.exe\u2028"),
        (b"\xff\xe9.txt".decode("utf-8", "surrogateescape"), r"\xff\xe9.txt"),
        ("\ud800", r"\ud800"),
        ("at https://me:pass@host:80/a, or (http:/me@host/a)", "at https://host:80/a, or (http:/host/a)"),
        ("--data=s3://KEY:se/cr+e@t@bucket/a?versionId=1", "--data=s3://bucket/a"),
        ("'https://host/a?token=1&sig=2' HTTPS://host?X=1", "'https://host/a' HTTPS://host"),
        ("https://host:8080/a@b hf://a/b@c d@e ./x@y?z /a?b", "https://host:8080/a@b hf://a/b@c d@e ./x@y?z /a?b"),
    ],
)
def test_names_given_by_others_are_shown_on_one_line_without_control_characters_and_urls_without_login_or_query(
    text: str, shown: str
) -> None:
    assert printable(text) == shown


def test_a_command_line_reads_a_secret_and_then_hides_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"https://me:{'p' * 100}@host/a?token=hidden"
    command = ["run.py", "--data", url, f"--data={url}"]
    for name in ("argv", "orig_argv"):
        monkeypatch.setattr(sys, name, [*command])
    assert parse_options(Several, "").data == (Path(url), Path(url))
    assert sys.argv == sys.orig_argv == ["run.py", "--data", "https://host/a", "--data=https://host/a"]
    sys.argv += ["--seeds", url]
    assert run_command(print, Several, "") == 2
    assert "got 'https://host/a', expected" in capsys.readouterr().err


def test_a_word_is_colored_only_on_a_terminal_and_unless_the_user_objects(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    print_warning("it is late")
    print(end="", flush=True)
    assert capfd.readouterr().out == "WARNING: it is late\n"
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as terminal:
        for no_color, color in (("1", ""), ("", "\033[33m")):
            monkeypatch.setenv("NO_COLOR", no_color)
            monkeypatch.setattr("sys.stdout", terminal)
            print_warning("it is late")
            terminal.flush()
            shown = os.read(leader, 100).decode()
            assert shown.startswith(f"{color}WARNING:") and "it is late" in shown
    os.close(leader)


def test_a_warning_beside_data_goes_to_the_stream_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    print_warning("it is late", to=sys.stderr)
    assert capsys.readouterr() == ("", "WARNING: it is late\n")


PROGRAM = """
import errno, sys
from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.config import ConfigError, StrictConfig

def main(options):
    {body}

sys.exit(run_command(main, StrictConfig, "Does something."))
"""


UNREAD = (
    ("print('x')", "stdout"),  # noticed at the end, when the output is flushed
    ("print('x' * 100_000); raise AssertionError('went on')", "stdout"),
    ("raise BrokenPipeError(errno.EPIPE, 'Broken pipe', '/dev/stdout')", "stdout"),
    ("raise ConfigError('a: wrong')", "stderr"),
)


@pytest.mark.parametrize(
    ("body", "unread", "arguments", "unbuffered"),
    [
        *((body, unread, [], unbuffered) for body, unread in UNREAD for unbuffered in ("", "1")),
        ("pass", "stdout", ["--help"], ""),
    ],
)
def test_a_closed_output_pipe_ends_the_program_or_the_help_quietly(
    body: str, unread: str, arguments: list[str], unbuffered: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body), *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    getattr(process, unread).close()
    said = getattr(process, {"stdout": "stderr", "stderr": "stdout"}[unread]).read()
    assert (process.wait(timeout=60), said) == (141, b"")


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("print('x')", 1, "the output cannot be written (No space left on device)\n"),  # at the end, when it is flushed
        ("[print('x' * 99) for _ in range(999)]", 2, "No space left on device; make room there"),
    ],
)
def test_output_into_a_file_on_a_full_disk_is_one_line_and_a_failure(body: str, code: int, said: str) -> None:
    program = [sys.executable, "-c", PROGRAM.format(body=body)]
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            program, cwd=REPOSITORY, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert done.stderr.startswith(f"-c: error: {said}")


def test_a_program_without_standard_output_still_runs() -> None:
    program = [sys.executable, "-c", PROGRAM.format(body="print('x')")]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *program], cwd=REPOSITORY, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_name_that_is_not_valid_text_can_be_printed() -> None:
    program = [sys.executable, "-c", PROGRAM.format(body=r"print('\udcff')")]
    done = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\udcff\n", "")


@pytest.mark.parametrize(
    ("given", "wait_policy", "spins"),
    [
        ({}, "passive", "10000"),
        ({"OMP_WAIT_POLICY": "active"}, "active", None),
        ({"GOMP_SPINCOUNT": "7"}, "passive", "7"),
    ],
)
def test_waiting_threads_spin_briefly_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], wait_policy: str, spins: str | None
) -> None:
    def main(options: Options) -> None:
        pass

    found = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    monkeypatch.setattr(os, "environ", found | given)
    with pytest.raises(SystemExit):
        run_script(main)
    assert (os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT")) == (wait_policy, spins)
