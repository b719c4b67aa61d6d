"""Claims about the commands of a study: cells of equal seed differ only in what their rows say."""

import shlex
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bench.study.commands import Commands, Sources
from bench.study.file import Row, Study, read_study
from data_prep.build_shards import BuildOptions
from electra_sampler.foundation.command_line import parse_options
from electra_sampler.foundation.config import StrictConfig
from finetune.config import GlueOptions, SquadOptions, TaggingOptions
from pretrain.evaluate import EvaluateOptions
from pretrain.planning.options import RunOptions
from tests.bench.study_cells import LANGUAGE, STUDY
from tests.conftest import REPOSITORY

SOURCES = Sources(("data/my text/*.xz",), Path("punkt"), Path("data/glue"), Path("data/squad"), Path("data/my blimp"))


def commands(study: Study = STUDY) -> Commands:
    return Commands(study, SOURCES, Path("runs/my study"))


def train(study: Study, row: Row, seed: int) -> str:
    return commands(study).training(row, seed).command


def test_the_rows_of_a_seed_differ_only_in_their_objective_and_overrides() -> None:
    study = read_study(REPOSITORY / "bench/studies/replication.json")
    plain = set()
    for row in study.rows:
        own = (
            train(study, row, 7)
            .replace(f"{row.folder}-seed7", "RUN")
            .replace(f"--row {shlex.quote(row.row or '')} ", "--row ROW ")
        )
        for override in row.set:
            own = own.replace(f" {override}", "")
        plain.add(own)
    assert len(plain) == 1


def test_every_command_of_a_samplers_row_names_its_file() -> None:
    given = "samplers.oracle:Oracle"
    study = LANGUAGE.model_copy(update={"rows": (Row(name="oracle", objective=given),)})
    jobs = [job for job in commands(study).cell(study.row("oracle"), 0) if "/runs/oracle" in job.command]
    assert [job.name.partition("-")[0] for job in jobs] == ["train", "language", "evaluate", "export"]
    assert all(f" --objective {given}" in job.command for job in jobs)


def test_the_commands_of_probes_and_evaluation_are_understood() -> None:
    """The options are parsed by the scripts' own parsers."""
    probes = [{"task": task, "metric": "f1", "epochs": 2, "seeds": [1, 2]} for task in ("MNLI", "SQuAD", "POS")]
    study = Study.from_values(STUDY.model_dump() | {"probes": probes, "measures": ["BLiMP"]})
    parsed: dict[str, type[StrictConfig]] = {
        "run_glue.py": GlueOptions,
        "run_squad.py": SquadOptions,
        "run_tagging.py": TaggingOptions,
        "evaluate.py": EvaluateOptions,
    }
    found: dict[str, Any] = {}
    for job in commands(study).cell(study.rows[1], 0):
        _, script, *arguments = shlex.split(job.command)
        if options := parsed.get(Path(script).name):
            found[Path(script).name] = parse_options(options, None, arguments)
    glue, squad, tagging, evaluation = (found[name] for name in parsed)
    assert glue.task == ("MNLI",) and str(glue.data_dir) == "data/glue" and glue.seeds == (1, 2) and squad.epochs == 2
    assert str(squad.data_dir) == "data/squad" and str(tagging.data_dir) == "data/glue/POS"
    assert [path.name for path in evaluation.runs] == ["better-row-seed0", "base-seed9"]


def test_a_probe_with_other_settings_has_another_folder_also_after_they_are_changed_back() -> None:
    """A folder never has records of other settings."""
    before = STUDY.probes[0]
    after = before.model_copy(update={"epochs": 9})
    made = [commands().probe(probe, "exported", "base-seed0") for probe in (before, after, before.model_copy())]
    folders = [words[words.index("--output") + 1] for words in map(shlex.split, made)]
    assert folders[0] == folders[2] != folders[1]


Options = TypeVar("Options", bound=StrictConfig)


def options_of(command: str, options: type[Options]) -> Options:
    """The command's options, parsed by the script's own parser."""
    return parse_options(options, None, shlex.split(command)[2:])


def test_a_study_on_the_language_writes_it_keeps_every_checkpoint_and_measures_each() -> None:
    made = commands(LANGUAGE)
    written, shards = made.shards()
    assert written.command == "python bench/language.py write 'runs/my study'/language"
    built = options_of(shards.command, BuildOptions)
    assert built.input == (Path("runs/my study/language/text"),) and built.vocab == "runs/my study/language/vocab"
    assert built.one_segment and built.held_out == 0.02
    train, measured, evaluation, _ = made.cell(LANGUAGE.rows[1], 0)
    assert {"checkpoint_every=3", "keep_every=3"} <= set(options_of(train.command, RunOptions).set)
    language, run = "'runs/my study'/language", "'runs/my study'/runs/better-row-seed0"
    assert measured.command == f"python bench/language.py measure {language} --runs {run}"
    assert options_of(evaluation.command, EvaluateOptions).runs == (Path("runs/my study/runs/better-row-seed0"),)


@pytest.mark.parametrize("vocab", ["given/vocab.txt", "/data/my vocab"])
def test_a_given_vocabulary_is_not_learned(vocab: str) -> None:
    study = Study.from_values(STUDY.model_dump(exclude={"vocab_size"}) | {"vocab": vocab})
    (shards,) = commands(study).shards()
    assert options_of(shards.command, BuildOptions).vocab == str(Path("runs/my study") / vocab)


def test_rows_start_from_the_studys_models_or_from_their_own() -> None:
    base, better = STUDY.rows
    own = better.model_copy(update={"init_from": ("/models/G", "/models/D")})
    study = STUDY.model_copy(update={"init_from": ("grown model",), "rows": (base, own)})
    found = [options_of(train(study, row, 0), RunOptions).init_from for row in study.rows]
    assert found == [("runs/my study/grown model",), ("/models/G", "/models/D")]
