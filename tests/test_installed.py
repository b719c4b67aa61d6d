"""Claims about the wheel: it is complete, and works outside the checkout in an environment without the checkout."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from configparser import ConfigParser
from itertools import product
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from tests.conftest import REPOSITORY, free_port, modules

(VERSION,) = re.findall(r"^version = (.*)$", (REPOSITORY / "setup.cfg").read_text(), re.MULTILINE)
TOP = ("electra_sampler", "data_prep", "pretrain", "finetune")
"""All that the wheel puts beside other projects' packages."""
BELOW = ("samplers", "ds_configs", "hostfiles")
"""At the checkout's top, and in the wheel below electra_sampler."""
SHIPPED = (*TOP, *BELOW)
BUILT_FROM = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
WORDS = ["a", "the", "cat", "dog", "mat", "tree", "sat", "ran", "under", "on", ".", "and", "it", "was", "red"]
TEXT = "\n\n".join(f"The {one} sat on the {other}. It {ran} on." for one, other, ran in product(WORDS[:7], repeat=3))
TINY = "--preset tiny --data shards --set optim.steps=2 optim.warmup_steps=1 batch_size=4 evaluate_sequences=2"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy because setuptools would write to the checkout and reuse old files there."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SHIPPED:
        shutil.copytree(REPOSITORY / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILT_FROM:
        shutil.copy(REPOSITORY / name, folder / "source")
    build = [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([*build, folder / "source"], check=True, timeout=240)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of programs of an environment with the wheel and the packages of this environment."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = [*PIP, "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # where pip would find the checkout
    subprocess.run([*install, wheel], check=True, timeout=240, env=own)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    _, *launcher = Path(sys.executable).with_name("deepspeed").read_text().splitlines()
    (folder / "bin" / "deepspeed").write_text("\n".join((f"#!{python}", *launcher)))
    (folder / "bin" / "deepspeed").chmod(0o755)
    return folder / "bin"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with a little text."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    (folder / "text.txt").write_text(TEXT)
    return folder


def test_every_package_with_modules_is_a_regular_one() -> None:
    """An editable installation does not find a namespace package below another package."""
    config = ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    elsewhere = dict(line.split(" = ") for line in config["options"]["package_dir"].splitlines() if line)
    packages = config["options"]["packages"].split()
    folders = [REPOSITORY / elsewhere.get(name, name.replace(".", "/")) for name in packages]
    assert not [folder for folder in folders if [*folder.glob("*.py")] and not (folder / "__init__.py").is_file()]


def run(command: str, installed: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command as typed in the folder with the environment activated."""
    program, *arguments = shlex.split(command)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PATH": f"{installed}:{environment['PATH']}", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    typed = [str(installed / program), *arguments]
    return subprocess.run(typed, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def done(command: str, installed: Path, folder: Path) -> str:
    """Output of a command that must succeed."""
    process = run(command, installed, folder)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def shards(installed: Path, folder: Path) -> Path:
    options = "--input text.txt --vocab vocab.txt --output shards --seq_length 16 --held_out 0.3 --workers 1"
    done(f"electra-sampler build-shards {options}", installed, folder)
    return folder / "shards"


def test_the_wheel_contains_every_module_and_every_file_they_read(wheel: Path) -> None:
    held = set(ZipFile(wheel).namelist())
    data = {f"{package}/py.typed" for package in TOP}
    templates = (
        path for package in TOP for end in ("html", "jinja") for path in (REPOSITORY / package).rglob(f"*.{end}")
    )
    data |= {path.relative_to(REPOSITORY).as_posix() for path in templates}
    below = (path for name in BELOW for path in (REPOSITORY / name).iterdir() if path.name != "__pycache__")
    data |= {f"electra_sampler/{path.relative_to(REPOSITORY).as_posix()}" for path in below}
    wanted = {module.as_posix() for module in modules(*TOP)} | data
    assert {name for name in held if ".dist-info/" not in name} == wanted
    assert {name.split("/")[0] for name in wanted} == {*TOP}


def test_the_console_command_prints_its_version_and_where_its_shipped_files_are(installed: Path, folder: Path) -> None:
    assert done("electra-sampler --version", installed, folder) == f"electra-sampler {VERSION}\n"
    shipped = Path(re.findall(r"(\S+/ds_configs)", done("electra-sampler --help", installed, folder))[0])
    assert (shipped / "zero1_bf16.json").is_file() and shipped.is_relative_to(installed.parent)


@pytest.mark.parametrize("named", ["--row Uniform", "--objective samplers.floors:Uniform"])
def test_our_samplers_are_found_by_row_and_by_name(named: str, installed: Path, folder: Path) -> None:
    shown = done(f"electra-sampler pretrain --preset tiny {named} --list_settings", installed, folder)
    assert "objective uniform" in shown.splitlines()[0]


def test_shards_are_built_in_a_users_folder(shards: Path) -> None:
    assert (shards / "manifest.json").is_file()


def test_commands_suggested_in_messages_are_installed(installed: Path, folder: Path) -> None:
    process = run("electra-sampler build-shards", installed, folder)
    assert process.returncode == 2
    assert process.stderr.startswith("electra-sampler build-shards: error: ")
    assert process.stderr.endswith("try the quickstart: python -m electra_sampler.quickstart.run\n")


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_every_source_copied_by_a_dockerfile_exists_and_suffices_for_the_wheel(name: str) -> None:
    """Checks the paths in the Dockerfiles; builds no image."""
    copied = [line.split()[1:] for line in (REPOSITORY / name).read_text().splitlines() if line.startswith("COPY ")]
    sources = [source for *given, _ in copied for source in given]
    assert all(target in ("./", *given) for *given, target in copied)
    assert all((REPOSITORY / source).exists() for source in sources)
    assert set(sources) == {*BUILT_FROM, *SHIPPED, "constraints.txt"}


def test_the_citation_and_the_workflow_match_the_project() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (VERSION, "Apache-2.0")
    assert citation["preferred-citation"]["title"] in (REPOSITORY / "README.md").read_text().replace("\n", " ")
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text())
    (command,) = [step["run"] for step in workflow["jobs"]["ci"]["steps"] if "run" in step]
    assert command.endswith(" .ci/run") and os.access(REPOSITORY / ".ci" / "run", os.X_OK)


def test_a_release_is_built_on_a_tag_which_must_name_its_version(tmp_path: Path) -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yml").read_text())
    assert workflow[True]["push"] == {"tags": ["v*"]}  # YAML's `on`
    (command,) = [step["run"] for step in workflow["jobs"]["release"]["steps"] if "run" in step]
    assert command == '.ci/release "$GITHUB_REF_NAME"'
    process = subprocess.run([REPOSITORY / ".ci" / "release", "v9"], capture_output=True, text=True)
    said = f"tag: got v9, expected v{VERSION}, after the version in setup.cfg; correct one of them\n"
    assert (process.returncode, process.stdout, process.stderr) == (2, "", said)


@pytest.mark.long
def test_a_run_on_two_processes_is_trained_evaluated_exported_and_fine_tuned(
    installed: Path, folder: Path, shards: Path
) -> None:
    (folder / "CoLA").mkdir()
    for name in ("train", "dev"):
        (folder / "CoLA" / f"{name}.tsv").write_text("made\t1\t\tthe cat sat .\nmade\t0\t*\tcat the sat .\n" * 4)
    two = f"deepspeed --num_gpus 2 --master_port {free_port()} --module"
    done(f"{two} pretrain.run {TINY} --output two", installed, folder)
    done("electra-sampler evaluate two", installed, folder)
    done("electra-sampler export two out", installed, folder)
    glue = "--model out --task CoLA --data_dir . --output scores --epochs 1 --seeds"
    done(f"{two} finetune.run_glue {glue} 1", installed, folder)
    assert "CoLA" in done("electra-sampler report scores", installed, folder)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_quickstart_runs_in_a_users_folder_by_installed_commands(installed: Path, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    process = subprocess.run(
        [installed / "electra-sampler", "quickstart", "--short"],
        cwd=tmp_path,
        env=environment | {"PATH": f"{installed}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    typed = re.findall(r"^\$ (.*)$", process.stdout, re.MULTILINE)
    assert process.returncode == 0, process.stdout + process.stderr
    assert not [command for command in typed if ".py" in command]
    assert "$ python -m data_prep.build_shards --input data/quickstart/raw " in process.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"data", "runs"}
