"""Claims about the command line generated from a configuration."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal
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


def parse(*arguments, options=Options):
    return parse_options(options, "Does something.\n\nAt length.", arguments)


def test_no_arguments_give_the_defaults():
    assert parse() == Options()


def test_every_kind_of_option_is_read_with_its_type():
    arguments = "--steps 3 --ngram .5 .3 .2 --mode slow --vocab v --dry_run --secret 1"
    options = parse(*arguments.split())
    assert options == Options(
        steps=3,
        ngram=(0.5, 0.3, 0.2),
        mode="slow",
        vocab=Path("v"),
        dry_run=True,
        secret=1,
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--stpes", "3"], "--stpes"),
        (["--step", "3"], "--step"),  # no abbreviations: they break when an option is added
        (["--steps", "many"], "steps: got 'many'"),
        (["--mode", "medium"], "'fast' or 'slow'"),
        (["--ngram", "1", "0"], "--ngram"),
    ],
)
def test_a_wrong_argument_is_a_config_error_that_names_it(arguments, named):
    with pytest.raises(ConfigError) as caught:
        parse(*arguments)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--stpes", "3"], "--stpes: unknown option; did you mean '--steps'?; see --help"),
        (["--Mode=fast", "--x"], "--Mode: unknown option; did you mean '--mode'?; --x: unknown option; see --help"),
        (["--mode", "fats"], "'fast' or 'slow'; did you mean 'fast'?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(arguments, problem):
    with pytest.raises(ConfigError) as caught:
        parse(*arguments)
    assert len(caught.value.problems) == 1
    assert problem in caught.value.problems[0]


def test_an_unknown_option_is_named_before_one_that_is_missing():
    with pytest.raises(ConfigError, match=r"^--modle: unknown option; did you mean '--model'\?"):
        parse("run", "--modle", "m", options=Needs)


def test_arguments_after_two_hyphens_are_not_options():
    assert parse("--model", "m", "--", "a", "--b", options=Needs).runs == (Path("a"), Path("--b"))


def test_a_repeated_list_option_is_concatenated_and_replaces_the_default():
    options = parse("--data", "a", "b", "--seeds", "3", "--data", "c", "--seeds", "4", options=Several)
    assert options == Several(seeds=(3, 4), data=(Path("a"), Path("b"), Path("c")))
    assert parse("--data", "a", options=Several).seeds == (1, 2)


@pytest.mark.parametrize(
    ("twice", "problem"),
    [
        ("--steps 3 --steps 4", "steps: got '3' and '4', expected --steps only once; remove one"),
        ("--steps=3 --steps=3", "steps: got '3' and '3', expected --steps only once"),
        ("--ngram 1 0 0 --ngram 0 1 0", "ngram: got ['1', '0', '0'] and ['0', '1', '0'], expected --ngram only once"),
        ("--dry_run --mode fast --dry_run", "dry_run: got True and True, expected --dry_run only once"),
        ("--secret 1 --secret 2", "secret: got '1' and '2'"),
    ],
)
def test_any_other_option_given_twice_is_refused(twice, problem):
    with pytest.raises(ConfigError) as caught:
        parse(*twice.split())
    assert problem in str(caught.value)


def test_the_bounds_of_a_list_do_not_hide_its_type_from_the_help(capsys):
    with pytest.raises(SystemExit):
        parse("--help", options=Several)
    assert "--seeds N [N ...]" in capsys.readouterr().out


def test_an_argument_without_a_flag_is_read_with_its_type():
    options = parse("a", "b", "--model", "m", options=Needs)
    assert options == Needs(runs=(Path("a"), Path("b")), model="m")


@pytest.mark.parametrize(("arguments", "named"), [(["run"], "--model"), (["--model", "m"], "runs")])
def test_an_option_without_default_is_required(arguments, named):
    with pytest.raises(ConfigError, match=f"required.*{named}"):
        parse(*arguments, options=Needs)


@pytest.fixture
def help_text(capsys):
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_shows_only_the_first_paragraph_of_the_description(help_text):
    assert "Does something." in help_text
    assert "At length." not in help_text


def test_help_shows_each_option_with_its_docstring_and_default(help_text):
    for line in ("number of steps, 100% of them (10)", "chances of the lengths (0.8 0.1 0.1)", "fast|slow"):
        assert line in help_text


def test_every_default_is_in_the_help_unless_the_text_already_names_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for options in (Options, Grouped):
        with pytest.raises(SystemExit):
            parse("--help", options=options)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for line in ("--vocab PATH", "--dry_run", "--seed N", "--row NAME", "--output PATH"):
        assert sum(shown.startswith(line) for shown in lines) == 1
    ends = ("vocabulary (none)", "start nothing (off)", "of every choice (0)", "of the table (none)", "(runs/NAME)")
    assert all(any(shown.endswith(end) for shown in lines) for end in ends)


def test_options_are_grouped_under_the_titles_of_their_annotations(capsys):
    with pytest.raises(SystemExit):
        parse("--help", options=Grouped)
    *_, run, data = capsys.readouterr().out.split("\n\n")
    assert run.splitlines()[0] == "the run:" and data.splitlines()[0] == "data:"
    assert all(option in run for option in ("--model NAME", "--seed N", "--set KEY=VALUE [KEY=VALUE ...]"))
    assert all(option in data for option in ("--output PATH", "--row NAME"))


def test_a_hidden_option_works_but_is_not_in_the_help(help_text):
    assert "secret" not in help_text
    assert parse("--secret", "1").secret == 1


@pytest.fixture
def arguments(monkeypatch):
    def set_arguments(*values):
        monkeypatch.setattr("sys.argv", ["folder/program.py", *values])

    set_arguments()
    return set_arguments


def test_a_program_that_returns_nothing_exits_with_0(arguments):
    assert run_command(lambda options: None, Options, "") == 0


def test_the_programs_own_exit_code_is_kept(arguments):
    assert run_command(lambda options: 75, Options, "") == 75


def test_a_config_error_exits_with_2_and_prints_one_line_per_problem(arguments, capsys):
    def fail(options):
        raise ConfigError("a: wrong", "b: missing")

    assert run_command(fail, Options, "") == 2
    assert capsys.readouterr().err == "program.py: error: a: wrong\nprogram.py: error: b: missing\n"


@pytest.mark.parametrize("name", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"])
@pytest.mark.parametrize(("local_rank", "lines"), [("0", 1), ("1", 0)])
def test_under_a_launcher_only_one_rank_per_machine_prints_the_error(
    arguments, capsys, monkeypatch, name, local_rank, lines
):
    def fail(options):
        raise ConfigError("a: wrong")

    monkeypatch.setattr("electra_sampler.foundation.command_line.LAST_TO_LEAVE", 0.0)
    monkeypatch.setenv(name, local_rank)
    assert run_command(fail, Options, "") == 2
    assert len(capsys.readouterr().err.splitlines()) == lines


def test_a_bad_option_exits_with_2_before_the_program_starts(arguments, capsys):
    arguments("--colour=red")
    assert run_command(pytest.fail, Options, "") == 2
    assert capsys.readouterr().err == "program.py: error: --colour: unknown option; see --help\n"


def test_ctrl_c_exits_with_130_without_traceback(arguments, capsys):
    def interrupt(options):
        raise KeyboardInterrupt

    assert run_command(interrupt, Options, "") == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    "bug", [ZeroDivisionError(), KeyError("a"), OSError("no number, no file"), OSError(errno.ENOENT, "no file named")]
)
def test_any_other_exception_is_a_bug_and_keeps_its_traceback(arguments, bug):
    def fail(options):
        raise bug

    with pytest.raises(type(bug)):
        run_command(fail, Options, "")


def read_as(read, content):
    """Returns a command that reads a file of this content, named in a folder of its own."""

    def command(options):
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
def test_what_a_users_file_can_raise_is_one_line_that_names_it(arguments, tmp_path, capsys, command, said):
    (tmp_path / "é \n").mkdir()
    arguments("--vocab", str(tmp_path / "é \n"))
    assert run_command(command, Options, "") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said.format(str(tmp_path / r"é \n").replace("\\", "\\")) in line


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
    arguments, capsys, monkeypatch, error, code, said
):
    def fail(options):
        raise error

    monkeypatch.setenv("LOCAL_RANK", "1")  # it may fail alone: it says so itself
    assert (run_command(fail, Options, ""), exit_code(error)) == (code, code)
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
    ],
)
def test_names_given_by_others_are_shown_on_one_line_without_control_characters(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at https://me:pass@host:80/a, or (http:/me@host/a)", "at https://host:80/a, or (http:/host/a)"),
        ("--data=s3://KEY:se/cr+e@t@bucket/a?versionId=1", "--data=s3://bucket/a"),
        ("'https://host/a?token=1&sig=2' HTTPS://host?X=1", "'https://host/a' HTTPS://host"),
        ("https://host:8080/a@b hf://a/b@c d@e ./x@y?z /a?b", "https://host:8080/a@b hf://a/b@c d@e ./x@y?z /a?b"),
    ],
)
def test_no_url_is_shown_with_its_login_or_query(text, shown):
    assert printable(text) == shown


def test_a_command_line_reads_a_secret_and_then_hides_it(monkeypatch, capsys):
    url = f"https://me:{'p' * 100}@host/a?token=hidden"
    command = ["run.py", "--data", url, f"--data={url}"]
    for name in ("argv", "orig_argv"):
        monkeypatch.setattr(sys, name, [*command])
    assert parse_options(Several, "").data == (Path(url), Path(url))
    assert sys.argv == sys.orig_argv == ["run.py", "--data", "https://host/a", "--data=https://host/a"]
    sys.argv += ["--seeds", url]
    assert run_command(print, Several, "") == 2
    assert "got 'https://host/a', expected" in capsys.readouterr().err


def test_an_error_about_a_hostile_name_is_one_line_of_text(arguments, capsys):
    def fail(options):
        raise ConfigError("input: a\n\x1b[31mred\udcff.txt is not there")

    assert run_command(fail, Options, "") == 2
    assert capsys.readouterr().err == "program.py: error: input: a\\n\\x1b[31mred\\xff.txt is not there\n"


def test_a_word_is_colored_only_on_a_terminal_and_unless_the_user_objects(monkeypatch, capfd):
    def printed():
        print_warning("it is late")
        print(end="", flush=True)
        return capfd.readouterr().out

    assert printed() == "WARNING: it is late\n"
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


def test_a_warning_beside_data_goes_to_the_stream_that_is_named(capsys):
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


def run_with_closed_pipe(body, *arguments, stream, unbuffered):
    """Runs a program with this body whose output (or error) pipe has no reader."""
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    program = [sys.executable, "-c", PROGRAM.format(body=body), *arguments]
    other = "stderr" if stream == "stdout" else "stdout"
    process = subprocess.Popen(
        program, cwd=REPOSITORY, env=environment, text=True, **{stream: subprocess.PIPE, other: subprocess.PIPE}
    )
    getattr(process, stream).close()
    said = getattr(process, other).read()
    return process.wait(timeout=60), said


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        ("print('x')", "stdout"),  # noticed at the end, when the output is flushed
        ("print('x' * 100_000); raise AssertionError('went on')", "stdout"),
        ("raise BrokenPipeError(errno.EPIPE, 'Broken pipe', '/dev/stdout')", "stdout"),
        ("raise ConfigError('a: wrong')", "stderr"),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_output_pipe_ends_the_program_quietly(body, stream, unbuffered):
    assert run_with_closed_pipe(body, stream=stream, unbuffered=unbuffered) == (141, "")


def test_a_closed_output_pipe_ends_the_help_quietly():
    assert run_with_closed_pipe("pass", "--help", stream="stdout", unbuffered="") == (141, "")


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("print('x')", 1, "the output cannot be written (No space left on device)\n"),  # at the end, when it is flushed
        ("[print('x' * 99) for _ in range(999)]", 2, "No space left on device; make room there"),
    ],
)
def test_output_into_a_file_on_a_full_disk_is_one_line_and_a_failure(body, code, said):
    program = [sys.executable, "-c", PROGRAM.format(body=body)]
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            program, cwd=REPOSITORY, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert done.stderr.startswith(f"-c: error: {said}")


def test_a_program_without_standard_output_still_runs():
    program = [sys.executable, "-c", PROGRAM.format(body="print('x')")]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *program], cwd=REPOSITORY, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_broken_pipe_other_than_the_output_is_a_bug_and_keeps_its_traceback(arguments):
    def fail(options):
        raise BrokenPipeError("a socket of the program's own")

    with pytest.raises(BrokenPipeError):
        run_command(fail, Options, "")


def test_a_name_that_is_not_valid_text_can_be_printed():
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
    monkeypatch, arguments, given, wait_policy, spins
):
    def main(options: Options) -> None:
        pass

    found = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    monkeypatch.setattr(os, "environ", found | given)
    with pytest.raises(SystemExit):
        run_script(main)
    assert (os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT")) == (wait_policy, spins)
