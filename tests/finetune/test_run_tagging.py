"""finetune/run_tagging.py: the same queue, records and report as GLUE; mistakes cost one line."""

import lzma
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.config import TaggingOptions
from finetune.reporting.results import make_rows
from finetune.reporting.tables import markdown
from finetune.running.records import RunRecord, read_records
from tests.finetune.conftest import run_queue
from tests.warm import Warm, outputs, run, two_ranks


def run_here(model: Path, data_dir: Path, output: Path, /, **options: Any) -> list[RunRecord]:
    """Runs the queue in this process; returns all records of the output folder."""
    given = {"model": str(model), "task": "NER", "data_dir": data_dir, "output": output, "epochs": 1, "seeds": (1,)}
    run_queue(TaggingOptions.from_values(given | options))
    return read_records(output / "results.jsonl")


def test_two_processes_run_all_seeds_and_the_next_launch_only_what_is_missing(
    stock_model: Path, tagging_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ("--model", stock_model, "--data_dir", tagging_folder, "--output", tmp_path, "--predict_test")
    options = ("--task", "ner", "--epochs", "1", "--seeds", "1", "2")
    outputs(two_ranks("finetune/run_tagging.py", *paths, *options))
    records = run_here(stock_model, tagging_folder, tmp_path, seeds=(1, 2, 3), predict_test=True)
    assert "1 of 3 runs to do" in capsys.readouterr().out
    assert [(record.run.seed, record.world_size) for record in records] == [(1, 2), (2, 2), (3, 1)]
    assert all(record.last.keys() == {"dev", "test"} for record in records)
    written = [path.name for path in (tmp_path / "predictions" / records[0].run.folder_name()).rglob("*.*")]
    assert sorted(written) == ["dev.conll", "examples.json", "test.conll"]


def test_the_task_is_learned_and_reported_as_a_median_without_the_papers_rows(
    stock_model: Path, tagging_folder: Path, tmp_path: Path
) -> None:
    settings = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-2}
    records = run_here(stock_model, tagging_folder, tmp_path, seeds=(1, 2), **settings)
    assert min(record.last["dev"]["f1"] for record in records) > 0.9
    text = markdown(make_rows(records), [tmp_path])
    assert "## Token classification" in text and "| model | NER F1 | NER Precision | NER Recall |" in text
    assert "*paper" not in text and "†" not in text


def test_the_difference_of_two_models_has_an_interval_over_sentences(
    stock_model: Path, tagging_folder: Path, tmp_path: Path
) -> None:
    run_here(stock_model, tagging_folder, tmp_path)
    records = run_here(stock_model, tagging_folder, tmp_path, random_weights=True)
    text = markdown(make_rows(records), [tmp_path])
    difference = text.split("differences between our own runs")[1].split("\n\n")[1].splitlines()[2]
    assert difference.count(" to ") == 3


def test_parts_of_speech_are_read_from_conllu(stock_model: Path, tmp_path: Path) -> None:
    sentence = "".join(
        f"{i}\t{word}\t_\t{tag}\t_\t_\t0\t_\t_\t_\n"
        for i, (word, tag) in enumerate((("good", "ADJ"), ("word1", "NOUN")), 1)
    )
    for split in ("train", "dev"):
        (tmp_path / f"xx-ud-{split}.conllu").write_text("\n".join([sentence] * 4))
    (record,) = run_here(stock_model, tmp_path, tmp_path / "out", task="POS")
    assert record.run.task == "POS" and record.last["dev"].keys() == {"accuracy"}


def test_a_killed_queue_resumes_in_the_middle(stock_model: Path, tagging_folder: Path, tmp_path: Path) -> None:
    """The seeds that were finished are not repeated, and the others end as without the kill."""
    options = ["--task", "NER", "--data_dir", tagging_folder, "--epochs", "2", "--seeds", "1", "2", "3"]
    command = ["finetune/run_tagging.py", "--model", stock_model, *options, "--output"]
    killed = Warm(*command, tmp_path / "killed")
    deadline = time.monotonic() + 200
    while not read_records(tmp_path / "killed" / "results.jsonl") and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    before = len(read_records(tmp_path / "killed" / "results.jsonl"))
    assert 1 <= before < 3
    done = run(*command, tmp_path / "killed")
    assert f"{3 - before} of 3 runs to do" in done.stdout
    assert run(*command, tmp_path / "whole").returncode == 0
    killed_records, whole = (read_records(tmp_path / name / "results.jsonl") for name in ("killed", "whole"))
    assert [(record.run, record.last, record.train_losses) for record in killed_records] == [
        (record.run, record.last, record.train_losses) for record in whole
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "NRE"}, "task: got 'NRE', expected: input should be 'NER' or 'POS'; did you mean 'NER'?"),
        ({"data_dir": Path("nowhere")}, "data_dir: no folder nowhere"),
        ({"model": "nowhere"}, "model: nowhere has no config.json"),
        ({"max_length": 64}, "max_length: got 64, expected at most the model's 32 positions"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(
    change: dict[str, Any], message: str, stock_model: Path, tagging_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_here(stock_model, tagging_folder, tmp_path / "out", **change)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


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
    options = {"task": task, "epochs": 3, "learning_rate": 1e-3, "predict_test": task == "NER"}
    (record,) = run_here(pretrained_model, tmp_path, tmp_path / "out", **options)
    assert record.collapsed != "non-finite loss"
    if task == "POS":
        assert record.last["dev"]["accuracy"] > 0.4  # the most frequent label has 0.17
