"""electra_sampler/commands.py: every script is a command, and its module is imported only when needed."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from electra_sampler.commands import COMMANDS
from electra_sampler.foundation.config import StrictConfig
from tests.conftest import REPOSITORY
from tests.scripts import HEAVY, SCREEN, SCRIPTS

CONSOLE = "import sys; sys.argv[0] = 'electra-sampler'; from electra_sampler.commands import main; sys.exit(main())"
"""Content of the script that pip installs."""
PARTS = {"electra_sampler/quickstart/corpus.py"}
"""Scripts that only the quickstart runs."""


def run(arguments: str, *options: str, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    typed = [sys.executable, *options, "-c", CONSOLE, *arguments.split()]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(typed, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_every_script_is_a_command() -> None:
    assert {module.replace(".", "/") + ".py" for module, _ in COMMANDS.values()} == set(SCRIPTS) - PARTS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_options_and_a_description(name: str) -> None:
    module = importlib.import_module(COMMANDS[name][0])
    assert issubclass(get_type_hints(module.main)["options"], StrictConfig)
    assert module.__doc__


@pytest.mark.parametrize("arguments", ["--help", "-h", ""])
def test_help_lists_every_command_on_one_line_and_imports_none(arguments: str) -> None:
    done = run(arguments, "-X", "importtime")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert len(lines) <= SCREEN[0]
    assert max(len(line) for line in lines if str(REPOSITORY) not in line) <= SCREEN[1]
    assert [line.split()[0] for line in lines if line.startswith("  ") and "electra-sampler" not in line] == [*COMMANDS]
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert not imported.intersection(HEAVY)
    assert not imported.intersection(module for module, _ in COMMANDS.values())


@pytest.mark.parametrize(("given", "named"), [("pretrian", "did you mean 'pretrain'?"), ("x", "expected one of ")])
def test_an_unknown_command_is_answered_with_the_nearest_name(given: str, named: str) -> None:
    done = run(given)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith(f"electra-sampler: error: command: got '{given}'; ") and named in line


def test_a_command_takes_its_options_and_uses_its_own_name_in_messages() -> None:
    assert run("export --help").stdout.startswith("usage: electra-sampler export ")
    done = run("export no/such out")
    assert done.returncode == 2
    assert done.stderr.startswith("electra-sampler export: error: ") and "no/such" in done.stderr
