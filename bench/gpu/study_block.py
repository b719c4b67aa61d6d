"""Stage f of `bench/gpu.py`: cells of a study, trained on shards that are copied along.

A cell is one row of the study, trained with one seed. Only finished cells can be copied to another machine, since
checkpoints are too large; on the same machine a killed run resumes. Each cell is
evaluated together with the reference run, as in the study, but not fine-tuned.
"""

import json
from pathlib import Path

from bench.gpu.items import keep
from bench.gpu.parts import GpuOptions
from bench.study.cell import content_sha256, measure
from bench.study.commands import Commands, Sources
from bench.study.file import Study, read_study
from bench.study.jobs import Jobs
from bench.study.report import write_report
from bench.study.results import FILE_NAME, Results
from data_prep.manifest import load_manifest

ROWS_ON_A_CPU = 1


def study_block(options: GpuOptions, product: Path) -> int:
    """Runs the missing cells, all rows of the first seed first; returns 1 if one failed, after trying the others."""
    study, output = block(options), options.work / "study"
    assert options.data and study.reference
    results = output / "results"
    results.mkdir(parents=True, exist_ok=True)
    shards = output / "shards"
    shards.unlink(missing_ok=True)
    shards.symlink_to(options.data)
    if product.is_file():
        keep(json.loads(product.read_text()), results / FILE_NAME)
    finished = Results(results, study).cells
    nowhere = Path("not-here")
    commands = Commands(study, Sources((), None, nowhere, nowhere, nowhere), output)
    jobs = Jobs(output, 1)
    reference = study.row(study.reference.row)
    failed = False
    for seed in study.seeds:
        for row in study.rows:
            if (row.name, seed) in finished:
                continue
            wanted = [commands.training(reference, study.reference.seed), *commands.cell(row, seed)]
            if not all(jobs.run(job) for job in wanted if not job.name.startswith("export")):
                failed = True
                continue
            cell = measure(output, commands, jobs, study, row, seed)
            Results(results, study).add(*cell, content_sha256(shards))
            write_report(results, study)
            keep(json.loads((results / FILE_NAME).read_text()), product)
    return int(failed)


def block(options: GpuOptions) -> Study:
    """Returns the study to run: scaled by `study_scale`, with the vocabulary and sequence length of the shards.

    BLiMP and fine-tuning are left out, as their data is not copied along. A CPU runs only the first rows with the
    first seed, in the tiny preset.
    """
    assert options.data
    manifest, study = load_manifest(options.data), read_study(options.study).scaled(options.study_scale)
    changes = {
        "blimp": (),
        "probes": (),
        "predictions": (),
        "vocab_size": manifest.vocab_size,
        "seq_length": manifest.seq_length,
    }
    if options.device == "cpu":
        changes |= {"preset": "tiny", "rows": study.rows[:ROWS_ON_A_CPU], "seeds": study.seeds[:1]}
    study = study.model_copy(update=changes)
    return study.model_copy(update={"measures": tuple(filter(study.known_measures().__contains__, study.measures))})
