"""GLUE's examples from files: its own TSV layout, Microsoft's for MRPC, Parquet, JSON lines; or from the hub.

The TSV files are not quoted CSV: a tab always separates, a quotation mark is text. MRPC's begin with a byte
order mark, CoLA's training and dev files have no header.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from finetune.glue.hub import HUB_DATASET, load_from_hub
from finetune.glue.rows import NumberedRow, parse
from finetune.glue.tasks import AX, Task, TaskData, UnseenSet, labelled_example, unseen_example
from finetune.tokens.examples import Example
from foundation.config import ConfigError

HUB = "hub"
AX_FOLDERS, AX_NAMES = ("AX", "diagnostic", "MNLI"), ("diagnostic-full", "diagnostic")
"""Where downloads of GLUE leave the diagnostic set; the full file has the labels."""
MICROSOFT_TRAIN, MICROSOFT_TEST = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt"
MICROSOFT_IDS = ("#1 ID", "#2 ID")
DEV_IDS = "dev_ids.tsv"


def load_task(task: Task, data_dir: str, *, tests: bool = False) -> TaskData:
    """The examples of a task from `data_dir`/<TASK>, or from the hub when `data_dir` is `hub` or `hub:NAME`.

    Raises:
        ConfigError: a missing folder or file, too many malformed rows, or a hub that cannot be reached.
    """
    left_out: dict[str, int] = {}
    if on_hub(data_dir):
        return load_from_hub(task, data_dir.partition(":")[2] or HUB_DATASET, left_out, tests=tests)
    folder = Path(data_dir) / task.name
    if not folder.is_dir():
        raise ConfigError(
            f"data_dir: no folder {folder}; expected train.tsv in it, in GLUE's layout, or --data_dir hub"
        )
    if task.name == "MRPC" and not _find(folder, "train") and (train := _microsoft_file(folder, MICROSOFT_TRAIN)):
        data = _load_from_microsoft(task, folder, train, left_out)
    else:
        train_examples, *dev = (read_split(folder, split, task, left_out) for split in ("train", *task.dev_splits))
        data = TaskData(train_examples, dict(zip(task.dev_splits, dev, strict=True)))
    return data._replace(tests=_load_tests(folder, task, left_out) if tests else {}, left_out=left_out)


def on_hub(data_dir: str) -> bool:
    """Whether `--data_dir` names a dataset on the hub."""
    return data_dir == HUB or data_dir.startswith(f"{HUB}:")


def missing_from(task: Task, data_dir: str) -> str | None:
    """What of a task `data_dir` lacks altogether, or `None`: a folder, or a training file."""
    folder = Path(data_dir) / task.name
    if on_hub(data_dir):
        return None
    if not folder.is_dir():
        return f"no folder {folder}"
    found = _find(folder, "train") or _microsoft_file(folder, MICROSOFT_TRAIN)
    return None if found else f"no training file in {folder}"


def read_split(folder: Path, split: str, task: Task, left_out: dict[str, int]) -> list[Example]:
    """The labelled examples of one split, in whatever format the folder has it.

    Raises:
        ConfigError: no file, or too many malformed rows.
    """
    files = _find(folder, split)
    if not files:
        raise ConfigError(
            f"data_dir: cannot read {folder / split}.tsv (no such file); expected GLUE's, or .jsonl or .parquet"
        )
    return [example for path in files for example in read_file(path, task, left_out)]


def _find(folder: Path, split: str) -> list[Path]:
    """The files of a split: one, or the hub's numbered Parquet files; the first format that is there."""
    for stem in (split, split.replace("dev", "validation")):
        for ending in (".tsv", ".jsonl", ".parquet"):
            if (folder / (stem + ending)).is_file():
                return [folder / (stem + ending)]
        if numbered := sorted(folder.glob(f"{stem}-*-of-*.parquet")):
            return numbered
    return []


def read_file(path: Path, task: Task, left_out: dict[str, int]) -> list[Example]:
    """The labelled examples of one file.

    Raises:
        ConfigError: an unreadable file, or too many malformed rows.
    """
    return parse(path, _rows(path, task, task.header), lambda row, place: labelled_example(row, task), left_out)


def read_unseen(paths: Sequence[Path], task: Task, left_out: dict[str, int]) -> UnseenSet:
    """The examples of a test set's files; they keep a label they have.

    Raises:
        ConfigError: as `read_file`.
    """
    found: list[tuple[str, Example]] = []
    places = count()
    for path in paths:
        rows = _rows(path, task, None)
        found += parse(path, rows, lambda row, place: unseen_example(row, task, place), left_out, places)
    return UnseenSet(task, [index for index, _ in found], [example for _, example in found])


def _rows(path: Path, task: Task, header: tuple[str, ...] | None) -> Iterator[NumberedRow]:
    """The rows of a file by its ending.

    Raises:
        ConfigError: a file that cannot be read as such.
    """
    read = {".jsonl": _json_rows, ".parquet": _parquet_rows}.get(path.suffix, partial(_tsv_rows, header=header))
    try:
        yield from read(path)
    except (OSError, ValueError) as error:  # pyarrow's errors and wrong UTF-8 are these too
        reason = str(error).splitlines()[0]
        raise ConfigError(f"data_dir: cannot read {path} ({reason}); expected GLUE's {task.name} file") from None


def _tsv_rows(path: Path, header: tuple[str, ...] | None) -> Iterator[NumberedRow]:
    # Only a line feed ends a row: sentences may hold the other characters Python takes for a line's end.
    with path.open(encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            row = line.rstrip("\r\n").split("\t")
            if header is None:
                header = tuple(row)
            elif len(row) != len(header):
                yield number, f"{len(row)} columns, expected {len(header)} separated by tabs"
            else:
                yield number, dict(zip(header, row, strict=True))


def _json_rows(path: Path) -> Iterator[NumberedRow]:
    with path.open(encoding="utf-8-sig", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                yield number, f"no JSON ({error.msg})"
                continue
            yield number, row if isinstance(row, dict) else f"JSON {type(row).__name__}, expected an object"


def _parquet_rows(path: Path) -> Iterator[NumberedRow]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
        yield from enumerate(rows, 1)


def _load_tests(folder: Path, task: Task, left_out: dict[str, int]) -> dict[str, UnseenSet]:
    """The test sets that are there, and AX with MNLI, by the file of a submission each goes into."""
    tests = {}
    for split, file in task.test_files.items():
        if paths := _find(folder, split):
            tests[file] = read_unseen(paths, task, left_out)
    if task.name == "MRPC" and not tests and (path := _microsoft_file(folder, MICROSOFT_TEST)):
        tests["MRPC.tsv"] = read_unseen([path], task, left_out)
    if task.name == "MNLI":
        places = [folder.parent / place / f"{name}.tsv" for place in AX_FOLDERS for name in AX_NAMES]
        if found := [place for place in places if place.is_file()]:
            tests["AX.tsv"] = read_unseen(found[:1], AX, left_out)
    return tests


def _microsoft_file(folder: Path, name: str) -> Path | None:
    """One of Microsoft's original files of MRPC, beside GLUE's or in `original`."""
    return next((path for path in (folder / name, folder / "original" / name) if path.is_file()), None)


def _load_from_microsoft(task: Task, folder: Path, train: Path, left_out: dict[str, int]) -> TaskData:
    """MRPC as GLUE divides it where GLUE's dev ids are there, otherwise as Microsoft does, whose test set is then dev.

    Both of Microsoft's files are labelled; GLUE's dev set is a part of the first, its test set the second.
    """

    def make(row: Mapping[str, Any], place: int) -> tuple[tuple[str, str], Example]:
        if lacking := [name for name in MICROSOFT_IDS if name not in row]:
            named = ", ".join((task.label_column, *MICROSOFT_IDS, *task.text_columns))
            raise ConfigError(f"data_dir: {train} has no column {lacking[0]!r}; expected its header line: {named}")
        first, second = (row[name] for name in MICROSOFT_IDS)
        return (first, second), labelled_example(row, task)

    rows = parse(train, _rows(train, task, None), make, left_out)
    dev_file = next((path for name in (DEV_IDS, "dev.tsv") if (path := folder / name).is_file()), None)
    if dev_file is None:
        test = _microsoft_file(folder, MICROSOFT_TEST)
        if test is None:
            raise ConfigError(f"data_dir: {folder} has neither {DEV_IDS} (GLUE's dev pairs) nor {MICROSOFT_TEST}")
        print(f"{folder}: no {DEV_IDS}, so MRPC as Microsoft divides it, not as GLUE does", flush=True)
        return TaskData([example for _, example in rows], {"dev": read_file(test, task, left_out)})
    ids_of_dev = (line.rstrip("\r\n").split("\t") for line in dev_file.read_text(encoding="utf-8-sig").split("\n"))
    # two columns in GLUE's `dev_ids.tsv`; in its `dev.tsv` the second and third
    dev_pairs = {tuple(row if len(row) == 2 else row[1:3]) for row in ids_of_dev}
    parts: dict[bool, list[Example]] = {False: [], True: []}
    for ids, example in rows:
        parts[ids in dev_pairs].append(example)
    if not parts[True]:
        raise ConfigError(f"data_dir: none of the pairs of {dev_file} is in {train}; expected GLUE's pairs of ids")
    return TaskData(parts[False], {"dev": parts[True]})
