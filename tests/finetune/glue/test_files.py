"""finetune/glue/files.py: GLUE's files are read as published, and mistakes in them are named by line.

A few malformed rows are skipped and counted; examples from the hub equal the examples from files.
"""

import math
from pathlib import Path
from typing import Any

import datasets
import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.glue.files import load_task, missing_from, read, read_rows
from finetune.glue.tasks import AX, TASKS, Example, GlueTask

# One training row of each task in the official layout: header, row, and the expected example.
LAYOUTS = {
    "CoLA": (None, "gj04\t0\t*\tThey caused him to become.", Example(("They caused him to become.",), 0.0)),
    "SST-2": ("sentence\tlabel", "a charming journey . \t1", Example(("a charming journey . ",), 1.0)),
    "MRPC": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        '1\t13\t14\tHe called it "big.\t"It is big," he said.',
        Example(('He called it "big.', '"It is big," he said.'), 1.0),
    ),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "2\tnews\tMSRpar\t2012test\t0003\tnone\tnone\tA man plays.\tSomeone plays.\t3.750",
        Example(("A man plays.", "Someone plays."), 0.75),
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "0\t1\t2\tWhy?\tHow come?\t1",
        Example(("Why?", "How come?"), 1.0),
    ),
    "MNLI": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse"
        "\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\t1n\tfiction\t( A )\t( B )\t(R A)\t(R B)\tIt rained.\tIt was dry.\tneutral\tcontradiction",
        Example(("It rained.", "It was dry."), 2.0),
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel",
        "0\tWhen?\tIn 1998.\tnot_entailment",
        Example(("When?", "In 1998."), 1.0),
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel",
        "0\tHe died.\tHe lives.\tnot_entailment",
        Example(("He died.", "He lives."), 1.0),
    ),
    "WNLI": (
        "index\tsentence1\tsentence2\tlabel",
        "0\tIt fits.\tThe box fits.\t1",
        Example(("It fits.", "The box fits."), 1.0),
    ),
}

# Numbers of rows and label shares of the real files, counted by `wc` and `cut | sort | uniq -c`.
REAL_ROWS = {
    "CoLA": (8_551, 1_043),
    "SST-2": (67_349, 872),
    "MRPC": (3_668, 408),
    "STS-B": (5_749, 1_500),
    "RTE": (2_490, 277),
}


def write(path: Path, *lines: str | None) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines if line is not None), encoding="utf-8")
    return path


def write_splits(folder: Path, name: str, *lines: str | None) -> Path:
    """The folder of a task whose files all have these lines."""
    (folder / name).mkdir()
    for split in ("train", *TASKS[name].dev_splits, *TASKS[name].test_files):
        write(folder / name / f"{split}.tsv", *lines)
    return folder / name


def read_file(path: Path, task: GlueTask) -> list[Example]:
    return read(task, (str(path), read_rows(path, task, task.header))).examples


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_read_in_its_official_layout_without_a_truncated_row(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, row, expected = LAYOUTS[name]
    folder = write_splits(tmp_path, name, header, *[row] * 999, row.rpartition("\t")[0], *[row] * 999)
    assert load_task(TASKS[name], str(tmp_path)).train == [expected] * 1_998
    assert f"{folder / 'train.tsv'}: 1 malformed row left out" in capsys.readouterr().out


def test_extra_columns_in_the_dev_files_of_mnli_are_read(tmp_path: Path) -> None:
    header, row, expected = LAYOUTS["MNLI"]
    folder = write_splits(tmp_path, "MNLI", header, row)
    columns = str(header).replace("label1", "label1\tlabel2\tlabel3\tlabel4\tlabel5")
    for split in ("dev_matched", "dev_mismatched"):
        write(folder / f"{split}.tsv", columns, row.replace("\tneutral\t", "\tneutral\tx\tx\tx\tx\t"))
    data = load_task(TASKS["MNLI"], str(tmp_path))
    assert (data.train, data.dev) == ([expected], {"dev_matched": [expected], "dev_mismatched": [expected]})


@pytest.mark.parametrize("name", REAL_ROWS)
def test_no_row_of_the_real_files_is_lost_or_joined(name: str, shared_data: Path) -> None:
    data = load_task(TASKS[name], str(shared_data / "glue"), tests=name not in ("CoLA", "SST-2"))  # theirs are not here
    assert (len(data.train), len(data.dev["dev"])) == REAL_ROWS[name]
    assert len(data.train) == TASKS[name].official_examples
    assert all(text.strip() for example in data.train for text in example.texts)


def test_the_real_files_of_qnli_are_complete_without_a_training_file(shared_data: Path) -> None:
    folder = shared_data / "glue" / "QNLI"
    assert len(read_file(folder / "dev.tsv", TASKS["QNLI"])) == 5_463
    unseen = (str(folder / "test.tsv"), read_rows(folder / "test.tsv", TASKS["QNLI"], None))
    assert len(read(TASKS["QNLI"], unseen, labeled=False).examples) == 5_463


def test_a_line_separator_inside_a_sentence_does_not_end_the_row(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", "sentence\tlabel", "one\u2028two\x85three\t1")
    assert read_file(path, TASKS["SST-2"]) == [Example(("one\u2028two\x85three",), 1.0)]


@pytest.mark.parametrize("score", ["5.001", "-1", "high", "nan"])
def test_a_score_outside_its_range_is_refused(score: str, tmp_path: Path) -> None:
    header, row, _ = LAYOUTS["STS-B"]
    path = write(tmp_path / "train.tsv", header, row.replace("3.750", score))
    with pytest.raises(ConfigError, match=r"line 2: score .*expected a number from 0 to 5"):
        read_file(path, TASKS["STS-B"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no examples"),
        (b"sentence\tlabel\n", "no examples"),
        (b"text\tlabel\na\t1\n", "no column 'sentence'"),
        (b"\xff\xfe\n", "cannot read"),
    ],
)
def test_a_file_in_another_format_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_file(path, TASKS["SST-2"])


def test_a_missing_folder_or_file_is_named_and_the_hub_has_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no folder .*RTE; expected GLUE's train\.tsv, or --data_dir hub"):
        load_task(TASKS["RTE"], str(tmp_path))
    (tmp_path / "RTE").mkdir()
    with pytest.raises(ConfigError, match=r"cannot read .*RTE/train\.tsv \(no such file\)"):
        load_task(TASKS["RTE"], str(tmp_path))
    assert missing_from(TASKS["RTE"], "hub") is None


UNSEEN_LAYOUTS = {
    "CoLA": ("index\tsentence", "4\tThey left."),
    "SST-2": ("index\tsentence", "4\tcharming"),
    "MRPC": ("index\t#1 ID\t#2 ID\t#1 String\t#2 String", "4\t1\t2\tA.\tB."),
    "STS-B": ("index\tgenre\tsentence1\tsentence2", "4\tnews\tA.\tB."),
    "QQP": ("id\tquestion1\tquestion2", "4\tWhy?\tHow?"),
    "MNLI": ("index\tpromptID\tsentence1\tsentence2", "4\t9\tA.\tB."),
    "QNLI": ("index\tquestion\tsentence", "4\tWhen?\tThen."),
    "RTE": ("index\tsentence1\tsentence2", "4\tA.\tB."),
    "WNLI": ("index\tsentence1\tsentence2", "4\tA.\tB."),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_test_set_is_read_in_its_official_layout_and_refused_if_it_is_missing(name: str, tmp_path: Path) -> None:
    task, (header, row, _) = TASKS[name], LAYOUTS[name]
    folder = write_splits(tmp_path, name, header, row)
    for split in task.test_files:
        write(folder / f"{split}.tsv", *UNSEEN_LAYOUTS[name])
    assert load_task(task, str(tmp_path)).tests == {}
    tests = load_task(task, str(tmp_path), tests=True).tests
    assert list(tests) == list(task.test_files.values())
    for found in tests.values():
        assert found.indices == ["4"]
        assert found.examples[0].texts == tuple(UNSEEN_LAYOUTS[name][1].split("\t")[-len(task.text_columns) :])
        assert math.isnan(found.examples[0].target)
    (folder / f"{split}.tsv").unlink()
    with pytest.raises(ConfigError, match=rf"cannot read .*{split}\.tsv .*; expected GLUE's {split}\.tsv"):
        load_task(task, str(tmp_path), tests=True)


@pytest.mark.parametrize("place", ["AX/diagnostic", "diagnostic/diagnostic", "MNLI/diagnostic"])
def test_mnli_includes_the_diagnostic_set_from_any_usual_place(place: str, tmp_path: Path) -> None:
    header, row, _ = LAYOUTS["MNLI"]
    write_splits(tmp_path, "MNLI", header, row)
    path = tmp_path / f"{place}.tsv"
    path.parent.mkdir(exist_ok=True)
    write(path, "index\tsentence1\tsentence2", "0\tA.\tB.")
    tests = load_task(TASKS["MNLI"], str(tmp_path), tests=True).tests
    assert list(tests) == ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
    assert math.isnan(tests["AX.tsv"].examples[0].target)
    columns = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel"
    write(tmp_path / f"{place}-full.tsv", columns, "\t\tNegation\t\tNews\tA.\tB.\tentailment")
    full = load_task(TASKS["MNLI"], str(tmp_path), tests=True).tests["AX.tsv"]
    assert (full.task, full.indices, full.examples) == (AX, ["0"], [Example(("A.", "B."), 0.0)])


def test_a_skipped_row_of_a_test_set_keeps_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "test.tsv", "sentence", "a", "b\tc", *"d" * 998)
    found = read(TASKS["CoLA"], (str(path), read_rows(path, TASKS["CoLA"], None)), labeled=False)
    assert found.indices == ["0", *map(str, range(2, 1_000))]


def test_qqp_is_read_as_published_including_rows_broken_by_line_ends(tmp_path: Path) -> None:
    """Made in the official layout, because the file is not here; see nyu-mll/GLUE-baselines #5."""
    header, row, expected = LAYOUTS["QQP"]
    first = '133273\t213221\t213222\t"Was Muhammad a real historical figure?'
    second = '"\tWas Muhammad a real historical figure? What is the evidence for his existence?\t0'
    rows, pairs = 30_000, 11
    folder = write_splits(tmp_path, "QQP", header, row)
    write(folder / "train.tsv", header, *[row] * 9_000, *[first, second] * pairs, *[row] * (rows - 9_000))
    data = load_task(TASKS["QQP"], str(tmp_path))
    assert (len(data.train), set(data.train)) == (rows, {expected})


@pytest.mark.parametrize(("name", "other"), [("QQP", "MRPC"), ("RTE", "CoLA"), ("CoLA", "SST-2"), ("QNLI", "RTE")])
def test_the_file_of_another_task_is_refused_by_name(name: str, other: str, tmp_path: Path) -> None:
    header, row, _ = LAYOUTS[other]
    path = write(tmp_path / "train.tsv", header, *[row] * 2_000)
    with pytest.raises(ConfigError, match=r"train\.tsv: \d+ of \d+ rows are malformed"):
        read_file(path, TASKS[name])


def write_sentences(folder: Path, *lines: str) -> Path:
    return write(folder / "train.tsv", "sentence\tlabel", *lines)


def test_a_file_with_more_malformed_rows_than_official_ones_is_refused_and_they_are_named(tmp_path: Path) -> None:
    path = write_sentences(tmp_path, "fine\t1", "no label", "wrong label\t2")
    with pytest.raises(ConfigError) as caught:
        read_file(path, TASKS["SST-2"])
    assert caught.value.problems == (
        f"data_dir: {path}, line 3: 1 columns, expected 2 separated by tabs",
        f"data_dir: {path}, line 4: label '2', expected one of 0, 1",
        f"data_dir: {path}: 2 of 3 rows are malformed, expected at most 1 in 1,000;"
        " fix them, or give the task's official file",
    )


def test_a_few_malformed_rows_are_skipped_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_sentences(tmp_path, "fine\t1", *["bad"] * 7, *["good\t0"] * 6_992)
    assert [example.texts[0] for example in read_file(path, TASKS["SST-2"])] == ["fine"] + ["good"] * 6_992
    said = capsys.readouterr().out
    assert f"{path}: 7 malformed rows left out" in said
    assert "line 3: 1 columns" in said
    assert "2 more malformed rows" in said
    with pytest.raises(ConfigError, match="7 of 6999 rows are malformed"):
        read_file(write_sentences(tmp_path, "fine\t1", *["bad"] * 7, *["good\t0"] * 6_991), TASKS["SST-2"])


def test_a_malformed_row_from_the_hub_is_named() -> None:
    rows = datasets.Dataset.from_dict({"sentence": ["a", "b", "c"], "label": [1, -1, 0]})
    with pytest.raises(ConfigError, match=r"data_dir: copy cola train, line 2: label -1, expected one of 0, 1"):
        read(TASKS["CoLA"], ("copy cola train", enumerate(rows, 1)))


def test_a_copy_on_the_hub_is_asked_for_each_split_and_the_diagnostic_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, configuration: str, split: str) -> Any:
        asked.append((name, configuration, split))
        label = -1 if split.startswith("test") else 1
        return datasets.Dataset.from_dict({"premise": ["a"], "hypothesis": ["b"], "label": [label], "idx": [8]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_task(TASKS["MNLI"], "hub:someone/copy", tests=True)
    assert asked == [
        ("someone/copy", configuration, split)
        for configuration, split in (
            ("mnli", "train"),
            ("mnli", "validation_matched"),
            ("mnli", "validation_mismatched"),
            ("mnli", "test_matched"),
            ("mnli", "test_mismatched"),
            ("ax", "test"),
        )
    ]
    assert data.train == [Example(("a", "b"), 1.0)]
    assert list(data.tests) == ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
    assert data.tests["AX.tsv"].indices == ["8"]
    assert math.isnan(data.tests["AX.tsv"].examples[0].target)


def test_an_unreachable_hub_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="cannot load nyu-mll/glue cola"):
        load_task(TASKS["CoLA"], "hub")


def test_an_example_has_glues_index_or_its_position() -> None:
    rows: list[dict[str, Any]] = [
        {"index": "7", "sentence": "a"},
        {"idx": 5, "sentence": "a"},
        {"id": "q", "sentence": "a"},
        {"sentence": "a"},
    ]
    assert read(TASKS["CoLA"], ("test", enumerate(rows, 1)), labeled=False).indices == ["7", "5", "q", "3"]
