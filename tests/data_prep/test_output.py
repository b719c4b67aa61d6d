"""Claims about the folder of a build."""

import json

import pytest

from data_prep.config import ConfigError
from data_prep.manifest import load_manifest
from data_prep.output import Plan, earlier_plan, locked, prepare, refuse_another
from data_prep.sentences import load_model
from data_prep.tokens import WordPiece


@pytest.fixture
def plan(built):
    return earlier_plan(built)


def test_one_builder_at_a_time(tmp_path):
    with locked(tmp_path), pytest.raises(ConfigError, match="another build is writing"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_the_plan_is_known_before_and_after_the_manifest(built, plan, tmp_path):
    prepare(tmp_path / "out", plan, WordPiece.load(built / "tokenizer"), load_model(built / "punkt"))
    assert earlier_plan(tmp_path / "out") == plan
    assert plan.config == load_manifest(built).config


def test_an_empty_folder_has_no_plan_and_a_strangers_folder_is_refused(tmp_path):
    assert earlier_plan(tmp_path) is None
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="not a build's"):
        earlier_plan(tmp_path)


def test_every_difference_is_named_with_both_values(plan, tmp_path):
    other = Plan(
        config=plan.config.model_copy(update={"seq_length": 128, "seed": 7}),
        versions=plan.versions,
        inputs=plan.inputs | {"0/new.txt": 5},
    )
    with pytest.raises(ConfigError) as caught:
        refuse_another(other, plan, tmp_path)
    problems = "\n".join(caught.value.problems)
    assert "seq_length" in problems
    assert "has 64, this one 128" in problems
    assert "0/new.txt" in problems
    assert len(caught.value.problems) == 3
    refuse_another(plan, plan, tmp_path)


def test_half_written_files_are_cleared_away(built, plan, tmp_path):
    output = tmp_path / "out"
    (output / "held_out").mkdir(parents=True)
    for name in ("shard-00000.bin.tmp", "held_out/shard-00000.idx.tmp"):
        (output / name).write_bytes(b"half")
    prepare(output, plan, WordPiece.load(built / "tokenizer"), load_model(built / "punkt"))
    assert not list(output.rglob("*.tmp"))


def test_a_damaged_plan_is_one_clear_line(tmp_path):
    (tmp_path / ".records").mkdir()
    (tmp_path / ".records" / "plan.json").write_text(json.dumps({"config": 1}))
    with pytest.raises(ConfigError, match=r"plan\.json"):
        earlier_plan(tmp_path)


def test_a_build_whose_plan_could_not_be_written_is_begun_again(built, plan, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    parts = (plan, WordPiece.load(built / "tokenizer"), load_model(built / "punkt"))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("data_prep.output.write_atomically", full)
        prepare(tmp_path / "out", *parts)
    assert earlier_plan(tmp_path / "out") is None
    prepare(tmp_path / "out", *parts)
    assert earlier_plan(tmp_path / "out") == plan
