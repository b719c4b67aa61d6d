"""Where a task's examples are: in GLUE's folder layout, as Microsoft's original MRPC, or on the hub."""

from pathlib import Path

from finetune.glue.rows import Row, Source, open_file, open_on_hub, read
from finetune.glue.tasks import AX, Example, GlueTask, TaskData, tasks_predicted_with
from foundation.config import ConfigError

HUB_DATASET = "nyu-mll/glue"
AX_FILES = [f"{folder}/{name}" for folder in ("AX", "diagnostic", "MNLI") for name in ("diagnostic-full", "diagnostic")]
"""Where downloads of GLUE leave the diagnostic set; the full file has the labels."""
MICROSOFT = {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"}
MICROSOFT_IDS = ("#1 ID", "#2 ID")
DEV_IDS = "dev_ids.tsv"


def load_task(task: GlueTask, data_dir: str, *, tests: bool = False) -> TaskData:
    """The examples of a task from `data_dir`/<TASK>, or from the hub when `data_dir` is `hub` or `hub:NAME`.

    Raises:
        ConfigError: a missing folder or file, too many malformed rows, or a hub that cannot be reached.
    """
    left_out: dict[str, int] = {}
    found = _find(task, data_dir, "train")
    if found and found[0].name == MICROSOFT["train"]:
        train, *dev = _divide_microsoft(task, data_dir, found[0], left_out)
    else:
        train, *dev = (_read_split(task, data_dir, split, left_out) for split in ("train", *task.dev_splits))
    wanted = [(of, split, file) for of in tasks_predicted_with(task) for split, file in of.test_files.items()]
    unseen = {
        file: read(of, sources, left_out, labelled=False)
        for of, split, file in (wanted if tests else ())
        if (sources := _sources(of, data_dir, split, labelled=False))
    }
    return TaskData(train, dict(zip(task.dev_splits, dev, strict=True)), unseen, left_out)


def missing_from(task: GlueTask, data_dir: str, split: str = "train") -> str | None:
    """Why `data_dir` has no such split of a task, or `None` where it has one; the hub is taken to have all."""
    folder = Path(data_dir) / task.name
    if _hub_dataset(data_dir) or _find(task, data_dir, split):
        return None
    return f"cannot read {folder / split}.tsv (no such file)" if folder.is_dir() else f"no folder {folder}"


def _read_split(task: GlueTask, data_dir: str, split: str, left_out: dict[str, int]) -> list[Example]:
    if problem := missing_from(task, data_dir, split):
        raise ConfigError(f"data_dir: {problem}; expected GLUE's {split}.tsv, or .jsonl or .parquet, or --data_dir hub")
    return read(task, _sources(task, data_dir, split), left_out).examples


def _sources(task: GlueTask, data_dir: str, split: str, *, labelled: bool = True) -> list[Source]:
    if dataset := _hub_dataset(data_dir):
        return [open_on_hub(task, dataset, split)]
    return [open_file(path, task, labelled=labelled) for path in _find(task, data_dir, split)]


def _hub_dataset(data_dir: str) -> str | None:
    place, _, name = data_dir.partition(":")
    return (name or HUB_DATASET) if place == "hub" else None


def _find(task: GlueTask, data_dir: str, split: str) -> list[Path]:
    """The files of a split: one, or the hub's numbered Parquet files; the first format that is there."""
    folder = Path(data_dir) / task.name
    stems = [folder / split, folder / split.replace("dev", "validation")]
    for stem in [Path(data_dir) / file for file in AX_FILES] if task is AX else stems:
        for suffix in (".tsv", ".jsonl", ".parquet"):
            if (path := stem.with_name(stem.name + suffix)).is_file():
                return [path]
        if numbered := sorted(stem.parent.glob(f"{stem.name}-*-of-*.parquet")):
            return numbered
    return _find_microsoft(folder, split)


def _find_microsoft(folder: Path, split: str) -> list[Path]:
    """Microsoft's original file, beside GLUE's or in `original`."""
    name = MICROSOFT.get(split, "")
    return [path for path in (folder / name, folder / "original" / name) if path.is_file()][:1]


def _divide_microsoft(
    task: GlueTask, data_dir: str, path: Path, left_out: dict[str, int]
) -> tuple[list[Example], list[Example]]:
    """MRPC as GLUE divides it where GLUE's dev ids are there, otherwise as Microsoft does, whose test set is then dev.

    Both of Microsoft's files are labelled; GLUE's dev set is a part of the first, its test set the second.
    """

    def pair_of(row: Row, place: int) -> str:
        if lacking := [name for name in MICROSOFT_IDS if name not in row]:
            named = ", ".join((task.label_column, *MICROSOFT_IDS, *task.text_columns))
            raise ConfigError(f"data_dir: {path} has no column {lacking[0]!r}; expected its header line: {named}")
        return "\t".join(row[name] for name in MICROSOFT_IDS)

    folder = Path(data_dir) / task.name
    found = read(task, [open_file(path, task)], left_out, index=pair_of)
    dev_file = next((file for name in (DEV_IDS, "dev.tsv") if (file := folder / name).is_file()), None)
    if dev_file is None:
        test = _find_microsoft(folder, "test")
        if not test:
            raise ConfigError(
                f"data_dir: {folder} has neither {DEV_IDS} (GLUE's dev pairs) nor {MICROSOFT['test']}; add one"
            )
        print(f"{folder}: no {DEV_IDS}, so MRPC as Microsoft divides it, not as GLUE does", flush=True)
        return found.examples, read(task, [open_file(test[0], task)], left_out).examples
    rows = [line.rstrip("\r\n").split("\t") for line in dev_file.read_text(encoding="utf-8-sig").split("\n")]
    pairs = {"\t".join(row if len(row) == 2 else row[1:3]) for row in rows}  # of dev_ids.tsv, or of dev.tsv
    parts: dict[bool, list[Example]] = {True: [], False: []}
    for pair, example in zip(found.indices, found.examples, strict=True):
        parts[pair in pairs].append(example)
    if not parts[True]:
        raise ConfigError(f"data_dir: none of the pairs of {dev_file} is in {path}; expected GLUE's pairs of ids")
    return parts[False], parts[True]
