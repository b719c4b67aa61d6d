"""Claims about the stages of the quickstart; the stages themselves are run by `make quickstart`."""

import re
import shlex
import sys

import pytest

from pretrain.presets import TINY
from quickstart.run import REPOSITORY, SHORT_STEPS, QuickstartOptions, Stage, link_default_folders, run_stage, stages


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(short=False):
    """The commands by stage, but for the port, which is another one every time."""
    return {stage.name: re.sub(r" --master_port \d+", "", stage.command) for stage in stages(short)}


def test_every_stage_runs_a_script_of_the_repository(folder):
    scripts = [next(word for word in shlex.split(command) if word.endswith(".py")) for command in commands().values()]
    assert len(scripts) == len(commands())
    assert not [script for script in scripts if not (REPOSITORY / script).is_file()]


def test_the_short_form_differs_in_the_steps_of_pre_training_alone(folder):
    full, short = commands(), commands(short=True)
    assert {name for name in full if full[name] != short[name]} == {"pre-training"}
    assert short["pre-training"].startswith(full["pre-training"] + " --set optim.steps=")


def test_the_short_form_pre_trains_for_half_of_the_steps():
    assert TINY.optim.steps == 2 * SHORT_STEPS
    assert "half of the steps" in QuickstartOptions.model_fields["short"].description


def test_the_untrained_encoder_is_fine_tuned_by_the_same_command(folder):
    assert commands()["untrained encoder"].replace("--random_weights ", "") == commands()["fine-tuning"]


def test_default_folders_lead_to_the_small_corpus_where_there_is_nothing_else(folder):
    link_default_folders()
    link_default_folders()
    assert {name: str((folder / "data" / name).readlink()) for name in ("raw", "vocab")} == {
        "raw": "quickstart/raw",
        "vocab": "quickstart/vocab",
    }


def test_a_folder_of_the_users_own_is_left_alone(folder):
    (folder / "data" / "raw").mkdir(parents=True)
    (folder / "data" / "wikibooks").mkdir()
    link_default_folders()
    assert not (folder / "data" / "raw").is_symlink()
    assert "default shards" not in commands()


def test_a_stage_runs_with_this_python_and_gives_back_its_exit_code(folder):
    script = "import sys; sys.exit(7 if sys.prefix == sys.argv[1] else 1)"
    assert run_stage(Stage("test", shlex.join(["python", "-c", script, sys.prefix]))) == 7
