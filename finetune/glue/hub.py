"""GLUE's examples from a copy of it on the Hugging Face hub."""

from collections.abc import Iterable, Mapping
from typing import Any

from finetune.glue.rows import parse
from finetune.glue.tasks import AX, Task, TaskData, UnseenSet, labelled_example, unseen_example
from finetune.tokens.examples import Example
from foundation.config import ConfigError

HUB_DATASET = "nyu-mll/glue"


def load_from_hub(task: Task, dataset: str, left_out: dict[str, int], *, tests: bool) -> TaskData:
    """Training and dev examples, and where asked for, the test sets.

    Raises:
        ConfigError: neither a network nor a cached copy, or too many malformed rows.
    """
    train, *dev = (
        from_hub(*_split(task, dataset, split), task=task, left_out=left_out) for split in ("train", *task.dev_splits)
    )
    data = TaskData(train, dict(zip(task.dev_splits, dev, strict=True)), left_out=left_out)
    if not tests:
        return data
    wanted = [(task, split, file) for split, file in task.test_files.items()]
    wanted += [(AX, "test", file) for file in AX.test_files.values() if task.name == "MNLI"]
    return data._replace(
        tests={file: unseen_set(*_split(of, dataset, split), task=of, left_out=left_out) for of, split, file in wanted}
    )


def _split(task: Task, dataset: str, split: str) -> tuple[str, Iterable[dict[str, Any]]]:
    """What a split is called in messages, and its rows."""
    import datasets

    configuration, split = task.name.lower().replace("-", ""), split.replace("dev", "validation")
    try:
        return f"{dataset} {configuration} {split}", datasets.load_dataset(dataset, configuration, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"data_dir: cannot load {dataset} {configuration} ({reason}); give a folder of TSV files"
        ) from None


def from_hub(source: str, rows: Iterable[Mapping[str, Any]], *, task: Task, left_out: dict[str, int]) -> list[Example]:
    """Rows of the hub's dataset as examples; its labels are class numbers in the order of `task.classes`.

    Raises:
        ConfigError: too many malformed rows, named by their numbers.
    """
    return parse(source, enumerate(rows, 1), lambda row, place: labelled_example(row, task), left_out)


def unseen_set(source: str, rows: Iterable[Mapping[str, Any]], *, task: Task, left_out: dict[str, int]) -> UnseenSet:
    """The same of a test set, whose labels the hub does not have."""
    found = parse(source, enumerate(rows, 1), lambda row, place: unseen_example(row, task, place), left_out)
    return UnseenSet(task, [index for index, _ in found], [example for _, example in found])
