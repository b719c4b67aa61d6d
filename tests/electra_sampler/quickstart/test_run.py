"""Claims about the stages of the quickstart; `make quickstart` runs the stages themselves."""

import pydoc_data.topics
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from electra_sampler.foundation.progress import about
from electra_sampler.quickstart.run import (
    FEWEST_STEPS,
    MOST_STEPS,
    SECONDS,
    STEP_SECONDS,
    QuickstartOptions,
    fitting,
    forecast,
    main,
    run_stage,
    stages,
    start_afresh,
)
from pretrain.presets import TINY
from tests.conftest import REPOSITORY, free_port, typed

OWN = ("data/quickstart", "runs/quickstart")
ELSEWHERE = {
    "corpus": ("--output", "--task"),
    "vocabulary": ("--input", "--output"),
    "shards": ("--input", "--output", "--vocab"),
    "pre-training": ("--data", "--output"),
    "fine-tuning": ("--data_dir", "--output"),
}
"""Options of each stage that must be given to keep it in the quickstart's folders."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(steps: int = MOST_STEPS) -> dict[str, str]:
    """The commands by stage, without the port, which is random."""
    return {name: command.replace(" --master_port {port}", "") for name, command in stages(steps).items()}


def test_every_stage_runs_a_command_of_the_project(folder: Path) -> None:
    for command in " & ".join(commands().values()).split(" & "):
        [module] = re.findall(r" (?:-m|--module) ([\w.]+) ", command)
        assert (REPOSITORY / f"{module.replace('.', '/')}.py").is_file()


def test_only_the_steps_of_pre_training_differ_between_machines(folder: Path) -> None:
    full, short = commands(), commands(FEWEST_STEPS)
    assert {name for name in full if full[name] != short[name]} == {"pre-training"}
    assert short["pre-training"].endswith(" --set optim.steps=800")
    assert TINY.optim.warmup_steps < FEWEST_STEPS < MOST_STEPS == TINY.optim.steps


def test_as_many_steps_are_trained_as_fit_into_four_minutes_within_bounds() -> None:
    assert [fitting(240 / steps) for steps in (2500, 2000, 1290, 800, 100)] == [2000, 2000, 1200, 800, 800]


def test_the_forecast_names_the_steps_and_scales_the_other_stages_with_the_root_of_a_step() -> None:
    line = forecast("this core in fp32", 4 * STEP_SECONDS, 800)
    whole, training = about(4 * 800 * STEP_SECONDS + 2 * sum(SECONDS.values())), about(4 * 800 * STEP_SECONDS)
    assert line.startswith(f"{whole} on this core in fp32: {training} for 800 steps of pre-training; ")
    assert f"; seconds of the other stages: corpus {2 * SECONDS['corpus']}, " in line


def test_the_short_form_trains_for_the_fewest_steps_without_measuring(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("electra_sampler.quickstart.run.run_stage", lambda command: 1)
    monkeypatch.setattr("electra_sampler.quickstart.run.stages", lambda steps: {f"{steps} steps": "true"})
    assert main(QuickstartOptions(short=True)) == 1
    said = capsys.readouterr()
    assert said.out == "\n$ true\n" and "quickstart: 800 steps failed" in said.err
    assert f"{FEWEST_STEPS} steps" in str(QuickstartOptions.model_fields["short"].description)


def test_the_untrained_encoder_is_fine_tuned_by_the_same_command(folder: Path) -> None:
    assert re.fullmatch(r"(.+) & \1 --random_weights", commands()["fine-tuning"])


def contents(folder: Path) -> dict[Path, object]:
    """Bytes of every file below the folder, and the target of every link."""
    paths = sorted(folder.rglob("*"))
    return {path: path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes() for path in paths}


def write_users_files(folder: Path) -> dict[Path, object]:
    """Writes files that a user may have in a clone, and leftovers of an earlier quickstart."""
    for name in ("data/raw/book.txt", "data/vocab/vocab.txt", "data/wikibooks/manifest.json", "runs/base/run.json"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(f"the user's {name}")
    before = contents(folder)
    for name in ("data/quickstart/raw/python.txt", "runs/quickstart/tiny/metrics.jsonl"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("of an earlier quickstart")
    return before


def test_a_users_files_are_unchanged_and_leftovers_of_an_earlier_quickstart_are_removed(folder: Path) -> None:
    before = write_users_files(folder)
    start_afresh()
    assert contents(folder) == before


def test_every_stage_reads_and_writes_only_in_the_quickstarts_own_folders(folder: Path) -> None:
    words = {name: shlex.split(command) for name, command in commands().items()}
    assert not [name for name, options in ELSEWHERE.items() if not set(options) <= set(words[name])]
    paths = {word for command in words.values() for word in command if word.startswith(("data/", "runs/"))}
    assert {path.startswith(OWN) for path in paths} == {True}


def clone_into(folder: Path) -> None:
    """Copies only the sources, with their bytecode, without data or runs."""
    for name in ("electra_sampler", "data_prep", "pretrain", "finetune", "ds_configs"):
        shutil.copytree(REPOSITORY / name, folder / name)
    shutil.copy(REPOSITORY / "Makefile", folder)


def type_own_text_commands(folder: Path) -> None:
    """Types the README's commands for one's own text, with text in data/raw; trains for two steps only."""
    (folder / "data/raw").mkdir(parents=True)
    (folder / "data/raw/topics.txt").write_text("\n\n".join(pydoc_data.topics.topics.values()))
    section = (REPOSITORY / "README.md").read_text().partition("## Your own text")[2].partition("\n## ")[0]
    commands = section.partition("```\n")[2].partition("```")[0].splitlines()
    assert len(commands) == 5
    for command in commands:
        two_steps = "--set optim.steps=2 optim.warmup_steps=1 batch_size=4" if "pretrain/run.py" in command else ""
        command = command.replace("deepspeed ", f"deepspeed --master_port {free_port()} ")  # 29500 may be taken
        typed(f"{command.partition('#')[0]} {two_steps}", folder, PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1")
    made = ("data/wikibooks/manifest.json", "runs/tiny/page.html", "exported/tiny/config.json")
    assert all((folder / name).is_file() for name in made)


def test_the_readmes_commands_for_own_text_work_as_printed(tmp_path: Path) -> None:
    clone_into(tmp_path)
    type_own_text_commands(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_whole_quickstart_changes_no_user_files_and_the_commands_for_own_text_work_after_it(tmp_path: Path) -> None:
    clone_into(tmp_path)
    write_users_files(tmp_path)
    before = contents(tmp_path)
    command = "python electra_sampler/quickstart/run.py --short"
    typed(command, tmp_path, PYTHONPATH=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")
    after = contents(tmp_path)
    changed = {path for path in before | after if before.get(path) != after.get(path)}
    assert {path for path in changed if not str(path.relative_to(tmp_path)).startswith(OWN)} == set()
    assert all((tmp_path / name).is_dir() for name in OWN)
    for name in ("data/raw", "data/vocab", "data/wikibooks"):
        shutil.rmtree(tmp_path / name)
    type_own_text_commands(tmp_path)


def test_a_stage_runs_its_commands_at_once_with_this_python_and_returns_the_exit_code(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = """
import pathlib, sys, time
own, other, prefix = sys.argv[1:]
pathlib.Path(own).touch()
while not pathlib.Path(other).exists(): time.sleep(0.01)
print(own, "begins", flush=True)
time.sleep(own == "first")
print(own, "ends")
sys.exit(7 if own == "second" and sys.prefix == prefix else 0)
"""
    of_both = [
        shlex.join(["python", "-c", script, *given, sys.prefix]) for given in (("first", "second"), ("second", "first"))
    ]
    assert run_stage(" & ".join(of_both)) == 7
    assert capfd.readouterr().out == "first begins\nfirst ends\nsecond begins\nsecond ends\n"
