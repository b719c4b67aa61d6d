"""finetune/run_tagging.py: the same queue, records and report as GLUE."""

import lzma
from pathlib import Path

import pytest

from finetune.config import TaggingOptions
from finetune.reporting.results import make_rows
from finetune.reporting.tables import markdown
from tests.finetune.conftest import run_queue
from tests.warm import outputs, two_ranks


def test_two_processes_run_all_seeds_and_the_next_launch_only_what_is_missing(
    stock_model: Path, tagging_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ("--model", stock_model, "--data_dir", tagging_folder, "--output", tmp_path, "--predict_test")
    outputs(two_ranks("finetune/run_tagging.py", *paths, "--task", "ner", "--epochs", "1", "--seeds", "1", "2"))
    given = {"model": str(stock_model), "data_dir": tagging_folder, "task": "NER", "epochs": 1, "seeds": (1, 2, 3)}
    records = run_queue(TaggingOptions, tmp_path, **given, predict_test=True)
    assert "1 of 3 runs to do" in capsys.readouterr().out
    assert [(record.run.seed, record.world_size) for record in records] == [(1, 2), (2, 2), (3, 1)]
    assert all(record.last.keys() == {"dev", "test"} for record in records)
    written = [path.name for path in (tmp_path / "predictions" / records[0].run.folder_name()).rglob("*.*")]
    assert sorted(written) == ["dev.conll", "examples.json", "test.conll"]


def test_the_task_is_learned_and_reported_with_intervals_over_sentences_without_the_papers_rows(
    stock_model: Path, tagging_folder: Path, tmp_path: Path
) -> None:
    given = {"model": str(stock_model), "data_dir": tagging_folder, "task": "NER", "seeds": (1,), "epochs": 3}
    given |= {"batch_size": 8, "learning_rate": 1e-2}
    (learned,) = run_queue(TaggingOptions, tmp_path, **given)
    assert learned.last["dev"]["f1"] > 0.9
    records = run_queue(TaggingOptions, tmp_path, **given, random_weights=True)
    text = markdown(make_rows(records), [tmp_path])
    assert "## Token classification" in text and "| model | NER F1 | NER Precision | NER Recall |" in text
    assert "*paper" not in text and "†" not in text
    difference = text.split("differences between our own runs")[1].split("\n\n")[1].splitlines()[2]
    assert difference.count(" to ") == 3


@pytest.mark.long
@pytest.mark.parametrize("task", ["NER", "POS"])
def test_real_files_train_by_one_command(task: str, pretrained_model: Path, shared_data: Path, tmp_path: Path) -> None:
    if task == "NER":
        files = {
            f"{name}.conll": shared_data / "ner" / "wnut17" / f"{name}.conll.xz" for name in ("train", "dev", "test")
        }
    else:  # there is no training file: the dev file takes its place
        gum = shared_data / "pos" / "gum"
        files = {"train.conllu": gum / "en_gum-ud-dev.conllu.xz", "dev.conllu": gum / "en_gum-ud-test.conllu.xz"}
    for name, packed in files.items():
        (tmp_path / name).write_bytes(lzma.decompress(packed.read_bytes()))
    given = {"model": str(pretrained_model), "data_dir": tmp_path, "task": task, "seeds": (1,), "epochs": 3}
    given |= {"learning_rate": 1e-3, "predict_test": task == "NER"}
    (record,) = run_queue(TaggingOptions, tmp_path / "out", **given)
    assert record.collapsed != "non-finite loss"
    if task == "POS":
        assert record.last["dev"]["accuracy"] > 0.4  # the most frequent label has 0.17
