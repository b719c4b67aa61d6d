"""Claims about the commands of a study: cells of equal seed differ only in what their rows say."""

import shlex
from pathlib import Path

from bench.study.commands import Commands, Sources
from bench.study.file import Row, Study, read_study
from finetune.config import GlueOptions, SquadOptions, TaggingOptions
from foundation.command_line import parse_options
from foundation.config import StrictConfig
from pretrain.evaluate import EvaluateOptions
from tests.bench.study_cells import STUDY
from tests.conftest import REPOSITORY

SOURCES = Sources(("data/my text/*.xz",), Path("punkt"), Path("data/glue"), Path("data/squad"), Path("data/my blimp"))


def commands(study: Study = STUDY) -> Commands:
    return Commands(study, SOURCES, Path("runs/my study"))


def train(study: Study, row: Row, seed: int) -> str:
    return commands(study).training(row, seed).command


def test_the_rows_of_a_seed_differ_only_in_their_objective_and_overrides():
    study = read_study(REPOSITORY / "bench/studies/replication.json")
    plain = set()
    for row in study.rows:
        command = train(study, row, 7)
        own = command.replace(f"{row.folder}-seed7", "RUN").replace(
            f"--row {shlex.quote(row.row or '')} ", "--row ROW "
        )
        for override in row.set:
            own = own.replace(f" {override}", "")
        plain.add(own)
    assert len(plain) == 1


def test_the_commands_of_probes_and_evaluation_are_understood():
    """The options are parsed by the scripts' own parsers."""
    probes = [{"task": task, "metric": "f1", "epochs": 2, "seeds": [1, 2]} for task in ("MRPC", "SQuAD", "POS")]
    study = Study.from_values(STUDY.model_dump() | {"probes": probes, "measures": ["BLiMP"]})
    parsed: dict[str, type[StrictConfig]] = {
        "run_glue.py": GlueOptions,
        "run_squad.py": SquadOptions,
        "run_tagging.py": TaggingOptions,
        "evaluate.py": EvaluateOptions,
    }
    found = {}
    for job in commands(study).cell(study.rows[1], 0):
        _, script, *arguments = shlex.split(job.command)
        if options := parsed.get(Path(script).name):
            found[Path(script).name] = parse_options(options, None, arguments)
    glue, squad, tagging, evaluation = (found[name] for name in parsed)
    assert glue.task == ("MRPC",) and glue.seeds == (1, 2) and squad.epochs == 2
    assert str(squad.data_dir) == "data/squad" and str(tagging.data_dir) == "data/glue/POS"
    assert [path.name for path in evaluation.runs] == ["better-row-seed0", "base-seed9"]


def test_a_probe_with_other_settings_has_another_folder_also_after_they_are_changed_back():
    """A folder never has records of other settings."""
    before = STUDY.probes[0]
    after = before.model_copy(update={"epochs": 9})
    made = [commands().probe(probe, "exported", "base-seed0") for probe in (before, after, before.model_copy())]
    folders = [words[words.index("--output") + 1] for words in map(shlex.split, made)]
    assert folders[0] == folders[2] != folders[1]
