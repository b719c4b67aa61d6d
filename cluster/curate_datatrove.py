"""Curates web text with datatrove, on one machine, Slurm or Ray: filters, near duplicates, decontamination.

    python cluster/curate_datatrove.py --input data/crawl --output data/curated
    python data_prep/build_shards.py --input data/curated/text

Run the same command again to resume. It needs datatrove, spaCy and pydantic, not the other packages of this project:
pip install "datatrove[io,processing,ray]" spacy lxml_html_clean pydantic. Nothing is downloaded.

The filters, their order and thresholds are those of FineWeb (Penedo et al. 2024, and datatrove's examples/fineweb.py);
near duplicates are found by datatrove's MinHash: 14 buckets of 8 hashes of 5-grams, so 92% of the pairs with a Jaccard
similarity of .8 are found, and one document of each group stays.
"""

import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field, model_validator

from foundation.command_line import Group, run_command
from foundation.config import ConfigError, StrictConfig, counted, shown
from foundation.files import make_folder, require_folder, write_atomically, write_if_other
from foundation.locks import Held, Lock
from foundation.machine import cores

PATTERNS = {"jsonl": "**/*.json*", "parquet": "**/*.parquet", "warc": "**/*.warc.gz"}
INSTALL = "pip install 'datatrove[io,processing,ray]' spacy lxml_html_clean pydantic"
LOCK, SETTINGS, JOBS, INDEX = "lock", "settings.json", "jobs.json", "decontamination"
EXTRACTION = 10  # seconds per page; datatrove's default, 1, includes the import of Trafilatura
LANGUAGE_SCORE = 0.65  # FineWeb's
MOST_TASKS = 1000
TASKS_PER_WORKER_OF_A_BUCKET = 20  # FineWeb: 50 workers per bucket beside 1,000 tasks


class CurateOptions(StrictConfig):
    """The command line of `curate_datatrove.py`."""

    input: Annotated[tuple[str, ...], Group("input and output")] = Field(min_length=1)
    """folders or quoted globs, local or such as s3://BUCKET/FOLDER"""
    output: Path
    """folder that every task can write to; text/ in it is the result"""
    format: Literal["jsonl", "parquet", "warc"] = "jsonl"
    """format of the files; text is extracted from the pages in WARC"""
    text_column: str = "text"
    """key or column of the text"""
    filter: Annotated[tuple[Literal["gopher", "c4", "fineweb"], ...], Group("curation")] = ("gopher", "c4", "fineweb")
    """sets of rules, made for English"""
    language: str | None = None
    """label of the language to keep, such as en; needs --language_model"""
    language_model: Path | None = None
    """fastText model, such as lid.176.bin"""
    decontaminate: tuple[Path, ...] = ()
    """evaluation sets (JSON, JSON lines, TSV): drop documents that share 12 words"""
    keep_removed: bool = False
    """write removed documents to removed/, with the reason"""
    executor: Annotated[Literal["local", "slurm", "ray"], Group("execution")] = "local"
    """Ray connects to RAY_ADDRESS, or starts on this machine"""
    tasks: int | None = Field(None, ge=1)
    """parts of the work (one per file, at most 1,000)"""
    workers: int | None = Field(None, ge=1)
    """tasks at a time (local: one per core; else no limit)"""
    memory_gb: int = Field(2, ge=1)
    """memory reserved per task on Slurm and Ray"""
    clustering_memory_gb: int = Field(8, ge=1)
    """of the only task that groups near duplicates"""
    partition: str | None = None
    """Slurm's partition"""
    time: str = "24:00:00"
    """Slurm's time limit per task"""
    sbatch: tuple[str, ...] = ()
    """further options of sbatch, such as account=NAME"""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.language is None) != (self.language_model is None):
            raise ValueError("language: expected together with --language_model; give both or neither")
        if (self.executor == "slurm") != (self.partition is not None):
            raise ValueError(
                f"partition: got {shown(self.partition)} with --executor {self.executor}, expected a partition with "
                "slurm only; `sinfo` lists them"
            )
        if self.sbatch and self.executor != "slurm":
            raise ValueError(f"sbatch: expected only with --executor slurm, got {self.executor}; leave it out")
        if wrong := [option for option in self.sbatch if not option.partition("=")[2]]:
            raise ValueError(f"sbatch: got {shown(wrong[0])}, expected KEY=VALUE without hyphens, such as account=mine")
        for name, paths in (("language_model", (self.language_model,)), ("decontaminate", self.decontaminate)):
            if missing := [path for path in paths if path and not path.is_file()]:
                raise ValueError(f"{name}: there is no file {missing[0]}; check the path")
        return self


class Stage(NamedTuple):
    """One pass over the data, each after the one before."""

    name: str
    blocks: list[Any]
    tasks: int
    memory_gb: int


def main(options: CurateOptions) -> int:
    """Runs or submits the stages that are not complete; returns the exit code."""
    require_folder(options.output)
    try:
        import_module("datatrove")
        if options.executor == "ray":
            import_module("ray")
        if options.format == "warc":  # in a task, datatrove would report a failed import as a timeout, page by page
            import_module("trafilatura")
        sources = [split_glob(given, options.format) for given in options.input]
        files = _files(sources, options.output)
        tasks = options.tasks or min(len(files), MOST_TASKS)
        if tasks > len(files):
            raise ConfigError(f"tasks: got {tasks}, expected at most {len(files)}, one per file; give fewer")
        stages = make_stages(options, sources, tasks)
        indices = _indices(options.decontaminate)
    except ImportError as error:
        raise ConfigError(f"executor: {sys.executable} lacks a package ({error}); {INSTALL}") from None
    make_folder(options.output)
    try:
        lock = Lock(options.output / LOCK)
    except Held as holder:
        raise ConfigError(f"output: another command writes to {options.output} ({holder}); wait for it") from None
    with lock:
        _record_settings(options, files, tasks)
        for name, hashes in indices.items():
            make_folder(options.output / INDEX)
            write_if_other(options.output / INDEX / name, hashes)
        return _submit(options, stages) if options.executor == "slurm" else _run(options, stages)


def split_glob(given: str, form: str) -> tuple[str, str]:
    """Splits an input into a folder and the pattern of the files in it."""
    parts = given.split("/")
    first = next((number for number, part in enumerate(parts) if set(part) & set("*?[")), None)
    if first is None:
        return given, PATTERNS[form]
    return "/".join(parts[:first]) or ("/" if given.startswith("/") else "."), "/".join(parts[first:])


def _files(sources: Sequence[tuple[str, str]], output: Path) -> list[str]:
    from datatrove.io import get_datafolder

    files = []
    for folder, pattern in sources:
        if "**" in pattern and output.resolve().is_relative_to(Path(folder).resolve()):
            raise ConfigError(f"output: {output} lies inside the input {folder}; choose another folder")
        try:
            found = get_datafolder(folder).list_files(glob_pattern=pattern)
        except OSError as error:
            raise ConfigError(f"input: {folder} cannot be listed ({error}); check the name and access") from None
        if not found:
            raise ConfigError(f"input: no file in {folder} matches {pattern}; give a folder, or a quoted glob of files")
        files += [f"{folder}/{name}" for name in found]
    return files


def _record_settings(options: CurateOptions, files: Sequence[str], tasks: int) -> None:
    """Records the settings on which the output depends, or compares them with those recorded.

    datatrove numbers files and documents by task, so another number of tasks or other files would mix up documents.

    Raises:
        ConfigError: the folder holds a run with other settings, or other files.
    """
    settings = {
        **options.model_dump(mode="json", include={"format", "text_column", "language", "keep_removed"}),
        "filter": sorted(set(options.filter)),
        "decontaminate": [sha256(path.read_bytes()).hexdigest() for path in options.decontaminate],
        "input": sha256("\n".join(files).encode()).hexdigest(),
        "tasks": tasks,
        "datatrove": version("datatrove"),
    }
    path = options.output / SETTINGS
    if not path.is_file():
        if others := [other for other in options.output.iterdir() if other.name != LOCK]:
            raise ConfigError(f"output: {options.output} holds other files ({others[0].name}); choose another folder")
        write_atomically(path, json.dumps(settings, indent=1).encode())
    elif differing := [key for key, value in json.loads(path.read_bytes()).items() if settings.get(key) != value]:
        raise ConfigError(
            f"{differing[0]}: differs from the run in {options.output}, see its {SETTINGS}; give the same, or another "
            "--output"
        )


def make_stages(options: CurateOptions, sources: Sequence[tuple[str, str]], tasks: int) -> list[Stage]:
    """Returns the stages as datatrove's blocks.

    The documents that pass the filters are written before they are hashed: stages 2 and 5 number them in this order.
    """
    from datatrove.pipeline import dedup, extractors, filters, readers, writers
    from datatrove.pipeline.decont import NGramsDecontFilter
    from datatrove.pipeline.dedup.minhash import MinhashConfig

    def folder(name: str) -> str:
        return str(options.output.absolute() / name)

    def removed(name: str) -> Any:
        return writers.JsonlWriter(folder(f"removed/{name}")) if options.keep_removed else None

    reader = {"jsonl": readers.JsonlReader, "parquet": readers.ParquetReader, "warc": readers.WarcReader}[
        options.format
    ]
    key = "text" if options.format == "warc" else options.text_column
    blocks = [reader(place, glob_pattern=pattern, text_key=key) for place, pattern in sources]
    if options.format == "warc":
        blocks.append(extractors.Trafilatura(timeout=EXTRACTION))
    if options.language:
        blocks.append(
            filters.FastTextClassifierFilter(
                str(options.language_model.absolute()),
                keep_labels=(options.language, LANGUAGE_SCORE),
                save_labels_in_metadata=False,
                newline_replacement=" ",
                exclusion_writer=removed("language"),
            )
        )
    if "gopher" in options.filter:
        blocks.append(filters.GopherRepetitionFilter(exclusion_writer=removed("gopher_repetition")))
        blocks.append(filters.GopherQualityFilter(exclusion_writer=removed("gopher_quality")))
    if "c4" in options.filter:  # as in FineWeb, lines need no mark at their end
        blocks.append(filters.C4QualityFilter(filter_no_terminal_punct=False, exclusion_writer=removed("c4")))
    if "fineweb" in options.filter:
        blocks.append(filters.FineWebQualityFilter(exclusion_writer=removed("fineweb")))
    blocks.append(writers.JsonlWriter(folder("filtered")))

    config = MinhashConfig()
    signatures, buckets, clusters = (folder(f"minhash/{name}") for name in ("signatures", "buckets", "clusters"))
    result = [readers.JsonlReader(folder("filtered")), dedup.MinhashDedupFilter(clusters, removed("near_duplicates"))]
    if options.decontaminate:
        found = writers.JsonlWriter(folder("removed/decontamination"))
        result.append(NGramsDecontFilter(folder(INDEX), exclusion_writer=found))
    result.append(writers.JsonlWriter(folder("text")))
    workers = max(1, tasks // TASKS_PER_WORKER_OF_A_BUCKET)
    memory = options.memory_gb
    return [
        Stage("1-filter", blocks, tasks, memory),
        Stage(
            "2-signatures",
            [readers.JsonlReader(folder("filtered")), dedup.MinhashDedupSignature(signatures, config)],
            tasks,
            memory,
        ),
        Stage(
            "3-buckets",
            [dedup.MinhashDedupBuckets(signatures, buckets, config=config)],
            config.num_buckets * workers,
            memory,
        ),
        Stage("4-clusters", [dedup.MinhashDedupCluster(buckets, clusters, config)], 1, options.clustering_memory_gb),
        Stage("5-text", result, tasks, memory),
    ]


def _indices(paths: Sequence[Path]) -> dict[str, bytes]:
    """Returns the hashes of each evaluation set's n-grams, by the file name that datatrove's filter expects.

    datatrove's own indexer downloads its evaluation sets and needs lighteval.

    Raises:
        ConfigError: a file cannot be read, or has no text long enough.
    """
    import numpy as np
    from datatrove.pipeline.decont import NGramsDecontFilter
    from datatrove.utils.text import ngrams, simplify_text

    search = NGramsDecontFilter(INDEX)
    indices = {}
    for number, path in enumerate(paths):
        hashes = set()
        try:
            for text in _texts(path):
                words = search.tokenizer.word_tokenize(simplify_text(text, search.config.norm_config))
                hashes.update(map(search.hash_func, map(" ".join, ngrams(words, search.config.n_grams))))
        except ValueError as error:
            raise ConfigError(f"decontaminate: {path} is not UTF-8 or not JSON ({error}); replace it") from None
        if not hashes:
            least = search.config.n_grams
            raise ConfigError(f"decontaminate: {path} has no text of {least} words to search for; leave it out")
        content = np.array(sorted(hashes), search.config.hash_config.np_dtype).tobytes()
        indices[f"{number}-{path.stem}.index.hashes"] = content
    return indices


def _texts(path: Path) -> Iterator[str]:
    """Yields every string in a JSON or JSON lines file, and every field of another file, split at tabs."""
    text = path.read_text("utf-8")
    if path.suffix not in (".json", ".jsonl"):
        yield from text.replace("\t", "\n").splitlines()
        return
    values = [json.loads(text)] if path.suffix == ".json" else [json.loads(line) for line in text.split("\n") if line]
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value


def _run(options: CurateOptions, stages: Sequence[Stage]) -> int:
    """Runs each stage to its end."""
    from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor

    if options.executor == "ray":
        import ray

        ray.init()
    for stage in stages:
        logs = options.output.absolute() / "logs" / stage.name
        error: object = "some tasks failed"
        if options.executor == "ray":
            executor = RayPipelineExecutor(
                stage.blocks,
                stage.tasks,
                options.workers or -1,
                mem_per_cpu_gb=stage.memory_gb,
                logging_dir=str(logs),
            )
        else:
            workers = min(stage.tasks, options.workers or cores())
            executor = LocalPipelineExecutor(stage.blocks, stage.tasks, workers, str(logs))
        try:
            executor.run()
        except Exception as raised:  # whatever a block raises; Ray's executor raises nothing
            error = raised
        if executor.get_incomplete_ranks():
            print(
                f"curate_datatrove: {stage.name} stopped ({error}), see {logs}/logs; fix it and run the same command "
                "to resume",
                file=sys.stderr,
            )
            return 1
    print(summary(options.output))
    return 0


def _submit(options: CurateOptions, stages: Sequence[Stage]) -> int:
    """Submits the stages that are not complete as Slurm jobs, each to start after the one before has succeeded."""
    from datatrove.executor import SlurmPipelineExecutor

    jobs = options.output / JOBS
    if jobs.is_file():
        listed = subprocess.run(
            ["squeue", "--noheader", "--format=%i", f"--jobs={','.join(json.loads(jobs.read_bytes()))}"],
            capture_output=True,
            text=True,
        )
        if running := listed.stdout.split():
            raise ConfigError(
                f"output: jobs of {options.output} are in the queue ({running[0]}); wait or `scancel` them"
            )
    before, submitted = None, []
    for stage in stages:
        before = SlurmPipelineExecutor(
            stage.blocks,
            stage.tasks,
            options.time,
            options.partition,
            mem_per_cpu_gb=stage.memory_gb,
            workers=options.workers or -1,
            job_name=f"curate-{stage.name}",
            qos="",
            env_command=f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"',
            sbatch_args={"kill-on-invalid-dep": "yes", **dict(option.split("=", 1) for option in options.sbatch)},
            depends=before,
            logging_dir=str(options.output.absolute() / "logs" / stage.name),
        )
        try:
            before.run()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"curate_datatrove: {stage.name} was not submitted ({error}); fix it and run again", file=sys.stderr)
            return 1
        if before.job_id != -1:
            submitted.append(before.job_id)
            write_atomically(jobs, json.dumps(submitted).encode())
    if submitted:
        print(f"submitted jobs {' '.join(submitted)}; run the same command when they have ended, to see the result")
    else:
        print(summary(options.output))
    return 0


def summary(output: Path) -> str:
    """Returns how many documents were read, removed by each block, and written, from datatrove's statistics by task."""
    read, written, removed = 0, 0, Counter[str]()
    for stage in ("1-filter", "5-text"):
        for path in (output / "logs" / stage / "stats").glob("*.json"):
            for block in json.loads(path.read_bytes()):
                kind, _, name = block["name"].partition(": ")
                counts = {
                    key: value["total"] if isinstance(value, dict) else value for key, value in block["stats"].items()
                }
                if "READER" in kind and stage == "1-filter":
                    read += counts.get("documents", 0)
                elif "WRITER" in kind and stage == "5-text":
                    written += counts.get("total", 0)
                elif "WRITER" not in kind:
                    removed[name.split(" ", 1)[-1]] += counts.get("total", 0) - counts.get("forwarded", 0)
    listed = ", ".join(f"{count:,} by {name}" for name, count in removed.items() if count)
    return f"{output / 'text'}: {counted(read, 'document')} read = {written:,} kept + removed: {listed or 'none'}"


if __name__ == "__main__":
    sys.exit(run_command(main, CurateOptions, __doc__))
