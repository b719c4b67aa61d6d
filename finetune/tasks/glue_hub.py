"""GLUE's examples from a copy of it on the Hugging Face hub."""

from collections.abc import Iterable, Mapping
from typing import Any

from data_prep.config import ConfigError
from finetune.tasks.glue import AX, Example, Task, TaskData, UnseenSet, labelled_example, unseen_example

HUB_DATASET = "nyu-mll/glue"


def load_from_hub(task: Task, dataset: str, tests: bool) -> TaskData:
    """Training and dev examples, and where `tests`, the test sets.

    Raises:
        ConfigError: neither a network nor a cached copy.
    """
    train, *dev = (from_hub(_rows(task, dataset, split), task) for split in ("train", *task.dev_splits))
    data = TaskData(train, dict(zip(task.dev_splits, dev, strict=True)))
    if not tests:
        return data
    wanted = [(task, split, file) for split, file in task.test_files.items()]
    wanted += [(AX, "test", file) for file in AX.test_files.values() if task.name == "MNLI"]
    return data._replace(tests={file: unseen_set(_rows(of, dataset, split), of) for of, split, file in wanted})


def _rows(task: Task, dataset: str, split: str) -> Iterable[dict[str, Any]]:
    import datasets

    configuration = task.name.lower().replace("-", "")
    try:
        return datasets.load_dataset(dataset, configuration, split=split.replace("dev", "validation"))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"data_dir: cannot load {dataset} {configuration} ({reason}); give a folder of TSV files"
        ) from None


def from_hub(rows: Iterable[Mapping[str, Any]], task: Task) -> list[Example]:
    """Rows of the hub's dataset as examples; its labels are class numbers in the order of `task.classes`."""
    return [labelled_example(row, task) for row in rows]


def unseen_set(rows: Iterable[Mapping[str, Any]], task: Task) -> UnseenSet:
    """The same of a test set, whose labels the hub does not have."""
    found = [unseen_example(row, task, place) for place, row in enumerate(rows)]
    return UnseenSet(task, [index for index, _ in found], [example for _, example in found])
