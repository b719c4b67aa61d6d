"""Runs a study: pre-trains every row of a file with every seed, measures each run, and reports the effects.

    python bench/study.py bench/studies/samplers.json --input "TEXT/*.xz" --data_dir GLUE --squad SQUAD --blimp BLIMP
    python bench/study.py bench/studies/backbones.json --results bench/results/backbones --report_only

Runs the commands a user would type, one per GPU or core at a time, all rows of the first seed first; rerun it to
resume. A cell (a row with a seed) in `results.json` is finished and skipped: with this file, to commit, another machine
continues, and `--report_only` prints the report again. Beside it are `report.md`, `report.png` and the examples that
intervals are computed from.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from math import inf
from os import chdir
from pathlib import Path
from typing import Annotated

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from bench.study.cell import content_sha256, is_finished, measure, require_same_text
from bench.study.commands import Commands, Sources
from bench.study.file import Row, Study, read_study
from bench.study.jobs import Jobs
from bench.study.results import EXAMPLES, Results
from electra_sampler.foundation.command_line import POSITIONAL, run_command
from electra_sampler.foundation.config import ConfigError, StrictConfig, one_of
from electra_sampler.foundation.files import ROOT, require_folder
from electra_sampler.foundation.locks import Held, Lock


class StudyOptions(StrictConfig):
    """The command line of a study."""

    study: Annotated[Path, POSITIONAL]
    """the study's file, such as bench/studies/samplers.json"""
    input: tuple[str, ...] = ("data/raw",)
    """text files, as for build_shards.py"""
    punkt: Path | None = None
    """folder of a Punkt model (default: learn one)"""
    data_dir: Path = Path("data/glue")
    """folder with a folder per task, such as CoLA"""
    squad: Path = Path("data/squad")
    """folder of SQuAD"""
    blimp: Path = Path("data/blimp")
    """folder of BLiMP"""
    output: Path | None = None
    """folder for shards, runs and logs (default: runs/NAME)"""
    results: Path | None = None
    """folder of results.json, examples and the report (default: OUTPUT/results)"""
    seeds: tuple[int, ...] = ()
    """seeds to run now (default: all of the study's)"""
    rows: tuple[str, ...] = ()
    """rows to run now (default: all of the study's)"""
    jobs: int | None = Field(default=None, ge=1)
    """cells to run at a time (default: one per GPU, or per core)"""
    scale: float = Field(default=1.0, gt=0, le=1)
    """share of steps, epochs and held-out sequences, to rehearse"""
    report_only: bool = False
    """run nothing; report the finished cells"""


def main(options: StudyOptions) -> int:
    """Runs the missing cells and reports after each; returns 1 if one failed, after running the others."""
    from bench.study.report import write_report

    chdir(ROOT)
    study = read_study(options.study).scaled(options.scale)
    rows, seeds = chosen(options, study)
    output = options.output or Path("runs") / options.study.stem
    results = options.results or output / "results"
    require_folder(output)
    require_folder(results, "results")
    found = Results(results, study)
    finished = {key for key, cell in found.cells.items() if is_finished(cell, study)}
    waiting = [(row, seed) for seed in seeds for row in rows if (row.name, seed) not in finished]
    failed, shared = False, results / EXAMPLES / "lock"  # another machine's study may add cells too
    if waiting and not options.report_only:
        require_data(options, study, output)
        with locked(output):
            sources = Sources(options.input, options.punkt, options.data_dir, options.squad, options.blimp)
            commands, jobs = Commands(study, sources, output), Jobs(output, options.jobs)
            if not all(jobs.run(job) for job in commands.shards()):
                return 1
            require_same_text(output / "shards", found)
            if study.reference and not jobs.run(
                commands.training(study.row(study.reference.row), study.reference.seed)
            ):
                return 1
            reporting = threading.Lock()

            def run_cell(cell: tuple[Row, int]) -> bool:
                done = all(jobs.run(job) for job in commands.cell(*cell))
                if done:
                    with reporting, Lock(shared, patience=inf):
                        measured = measure(output, commands, jobs, study, *cell)
                        Results(results, study).add(*measured, content_sha256(output / "shards"))
                        write_report(results, study)
                return done

            with ThreadPoolExecutor(jobs.workers) as pool:
                failed = not all([*pool.map(run_cell, waiting)])
    with Lock(shared, patience=inf):
        write_report(results, study, keep=not options.report_only)
    print((results / "report.md").read_text())
    return int(failed)


def locked(output: Path) -> Lock:
    """Locks the output folder against a second study.

    Raises:
        ConfigError: another command holds the lock; the message names it.
    """
    try:
        return Lock(output / "lock")
    except Held as who:
        raise ConfigError(f"output: {output} is in use by {who}; wait until it ends or name another --output") from None


def chosen(options: StudyOptions, study: Study) -> tuple[tuple[Row, ...], tuple[int, ...]]:
    """Returns the rows and seeds to run now.

    Raises:
        ConfigError: a row or seed is not in the study.
    """
    names = [row.name for row in study.rows]
    problems = [f"rows: got {name!r}, {one_of(name, names)}" for name in options.rows if name not in names]
    problems += [
        f"seeds: got {seed}, {one_of(seed, map(str, study.seeds))}" for seed in options.seeds if seed not in study.seeds
    ]
    if problems:
        raise ConfigError(*problems)
    rows = tuple(row for row in study.rows if row.name in (options.rows or names))
    return rows, options.seeds or study.seeds


def require_data(options: StudyOptions, study: Study, output: Path) -> None:
    """Checks that the data of every measure, a given vocabulary and the models to start from are there, before anything
    is trained.

    Raises:
        ConfigError: one is missing.
    """
    tasks = {probe.task for probe in study.probes}
    needed = [("data_dir", options.data_dir / task) for task in sorted(tasks - {"SQuAD"})]
    needed += [("squad", options.squad)] if "SQuAD" in tasks else []
    needed += [("blimp", options.blimp)] if study.blimp else []
    needed += [("punkt", options.punkt)] if options.punkt else []
    missing = [f"{name}: {path} is not a folder; name one" for name, path in needed if not path.is_dir()]
    models = (*study.init_from, *(name for row in study.rows for name in row.init_from))
    given = [("init_from", name) for name in models]
    given += [("vocab", study.vocab)] if study.vocab else []
    missing += [
        f"{name}: {output / path} does not exist; the study's paths are relative to --output"
        for name, path in dict.fromkeys(given)
        if not (output / path).exists()
    ]
    if missing:
        raise ConfigError(*missing)


if __name__ == "__main__":
    sys.exit(run_command(main, StudyOptions, __doc__))
