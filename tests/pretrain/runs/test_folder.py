"""Claims about the run folder: a run resumes as the same run, or not at all."""

import json
import os
from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from pretrain.config import with_overrides
from pretrain.job.rank_log import EndRecord, write_record
from pretrain.runs.folder import REPLACED, RunDescription, differences, find_run, read_run, write_run


def test_a_description_is_read_as_it_was_written(tmp_path: Path, description: RunDescription) -> None:
    write_run(tmp_path / "run", description, {"train_batch_size": 8})
    assert read_run(tmp_path / "run") == description
    assert (tmp_path / "run" / "tokenizer" / "vocab.txt").is_file()
    assert find_run(tmp_path / "run") == description and find_run(tmp_path / "other") is None


@pytest.mark.parametrize(
    "override",
    [
        "log_every=1",
        "evaluate_every=7",
        "checkpoint_every=3",
        "keep_checkpoints=9",
        "keep_every=10000",
        "evaluate_sequences=4",
        "deterministic=false",
    ],
)
def test_bookkeeping_and_how_a_run_rounds_may_change_between_starts(
    override: str, tmp_path: Path, description: RunDescription
) -> None:
    write_run(tmp_path / "run", description, {})
    changed = description.model_copy(update={"run": with_overrides(description.run, [override])})
    assert not [*differences(tmp_path, description, changed)]
    write_run(tmp_path / "run", changed, {})
    assert read_run(tmp_path / "run").run == changed.run != description.run


def test_another_configuration_or_data_is_refused_naming_every_difference(
    tmp_path: Path, description: RunDescription
) -> None:
    other = with_overrides(description.run, ["optim.lr=1e-5", "objective.gamma=piecewise"])
    changed = description.model_copy(
        update={"run": other, "data_sha256": "0" * 64, "tokenizer_sha256": "1" * 64, "vocab_size": 301}
    )
    problems = [*differences(tmp_path, description, changed)]
    keys = ["data_sha256", "run.objective.gamma", "run.optim.lr", "tokenizer_sha256", "vocab_size"]
    assert [problem.split(":")[0] for problem in problems] == keys
    assert "use the same value or another --output" in problems[1]
    assert "was started with another vocabulary than this command says; use the same --data" in problems[3]
    assert "0" * 64 not in problems[0], "a checksum tells nobody what to do"


def test_a_folder_that_is_not_a_run_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path}/run\.json .*expected a folder written by pretrain/run\.py"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "{", "null", "[]", '"text"', "[" * 100_000, '{"run": ' + "9" * 10_000 + "}", "\ud800"],
    ids=lambda content: content[:10],
)
def test_a_damaged_description_is_one_line_with_a_remedy(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError, match=r"run: .*run\.json.*; restore it from a copy, or remove it") as error:
        read_run(tmp_path)
    assert len(error.value.problems) == 1 and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("data", []), ("seq_length", 3), ("vocab_size", 10**9), ("mask_token_id", 300), ("pad_token_id", -1)],
)
def test_a_description_that_no_run_can_have_is_one_line_that_names_the_field(
    field: str, value: object, tmp_path: Path, description: RunDescription
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(description.model_dump(mode="json") | {field: value}))
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/run\.json: {field}: got") as error:
        read_run(tmp_path)
    assert len(error.value.problems) == 1


@pytest.mark.parametrize(
    ("objective", "problem"),
    [
        ({"name": "hp_loss", "mixture": 0.1}, r"run\.objective: unknown key 'mixture'; expected one of .* lambda1,"),
        ({"name": "hp_los"}, r"run\.objective: got name 'hp_los', expected one of hp_loss, hp_dist, electra, mlm"),
        ({"name": []}, r"run\.objective: got name \[\], expected one of hp_loss"),
        (None, r"run\.objective: got name None, expected one of hp_loss"),
    ],
)
def test_an_objective_with_a_switch_it_does_not_have_is_refused(
    objective: object, problem: str, tmp_path: Path, description: RunDescription
) -> None:
    values = description.model_dump(mode="json")
    values["run"]["objective"] = objective
    (tmp_path / "run.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=problem):
        read_run(tmp_path)


@pytest.mark.parametrize("name", REPLACED)
def test_a_folder_with_files_of_others_is_no_place_for_a_new_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "slurm-7.out").touch()
    (tmp_path / "checkpoints").symlink_to(tmp_path)  # made in advance, to a larger disk
    assert find_run(tmp_path) is None
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}\n")
    with pytest.raises(
        ConfigError, match=f"output: {tmp_path} holds {name}, which no run wrote .*; move them away, or"
    ):
        find_run(tmp_path)


def test_a_start_that_was_killed_before_its_description_may_be_repeated(
    tmp_path: Path, description: RunDescription
) -> None:
    (tmp_path / "logs").mkdir()
    write_record(tmp_path, EndRecord.of(0))  # before any other file
    write_run(tmp_path, description, {})
    (tmp_path / "run.json").unlink()
    assert find_run(tmp_path) is None


def test_a_description_that_is_a_pipe_or_a_device_is_refused(tmp_path: Path) -> None:
    for name, make in (("pipe", os.mkfifo), ("device", lambda path: path.symlink_to("/dev/zero"))):
        (tmp_path / name).mkdir()
        make(tmp_path / name / "run.json")
        with pytest.raises(ConfigError, match=r"run: .*run\.json is a pipe, a socket or a device; give a file"):
            find_run(tmp_path / name)
