"""finetune/tasks/glue.py: GLUE's files are read as they are, and mistakes in them are named by line."""

from pathlib import Path

import datasets
import pytest

from data_prep.config import ConfigError
from finetune.tasks.glue import TASKS, Example, from_hub, load_task, read_tsv, select_tasks

# One training row of each task in the official layout: header, row, what it must become.
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

# Rows and label shares of the real files, as `wc` and `cut | sort | uniq -c` count them.
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


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_read_in_its_official_layout(name: str, tmp_path: Path) -> None:
    header, row, expected = LAYOUTS[name]
    assert read_tsv(write(tmp_path / "train.tsv", header, row), TASKS[name]) == [expected]


def test_the_dev_files_of_mnli_with_their_extra_columns_are_read(tmp_path: Path) -> None:
    header, row, expected = LAYOUTS["MNLI"]
    folder = tmp_path / "MNLI"
    folder.mkdir()
    write(folder / "train.tsv", header, row)
    for split in ("dev_matched", "dev_mismatched"):
        columns = header.replace("label1", "label1\tlabel2\tlabel3\tlabel4\tlabel5")
        write(folder / f"{split}.tsv", columns, row.replace("\tneutral\t", "\tneutral\tx\tx\tx\tx\t"))
    data = load_task(TASKS["MNLI"], str(tmp_path))
    assert data.train == [expected]
    assert data.dev == {"dev_matched": [expected], "dev_mismatched": [expected]}


@pytest.mark.parametrize("name", REAL_ROWS)
def test_no_row_of_the_real_files_is_lost_or_joined(name: str, shared_data: Path) -> None:
    data = load_task(TASKS[name], str(shared_data / "glue"))
    assert (len(data.train), len(data.dev["dev"])) == REAL_ROWS[name]
    assert len(data.train) == TASKS[name].official_examples
    assert all(text.strip() for example in data.train for text in example.texts)


def test_quotation_marks_of_real_mrpc_stay_text(shared_data: Path) -> None:
    first = load_task(TASKS["MRPC"], str(shared_data / "glue")).train[0]
    assert first.texts[0].startswith('Amrozi accused his brother, whom he called "the witness"')
    assert first.target == 1.0


def test_a_line_separator_inside_a_sentence_does_not_end_the_row(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", "sentence\tlabel", "one\u2028two\x85three\t1")
    assert read_tsv(path, TASKS["SST-2"]) == [Example(("one\u2028two\x85three",), 1.0)]


def test_malformed_rows_are_named_by_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", "sentence\tlabel", "fine\t1", "no label", "wrong label\t2")
    with pytest.raises(ConfigError) as caught:
        read_tsv(path, TASKS["SST-2"])
    assert caught.value.problems == (
        f"data_dir: {path}, line 3: 1 columns, expected 2 separated by tabs",
        f"data_dir: {path}, line 4: label '2', expected one of 0, 1",
    )


def test_many_malformed_rows_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", "sentence\tlabel", *["bad"] * 40)
    with pytest.raises(ConfigError, match="35 more malformed rows"):
        read_tsv(path, TASKS["SST-2"])


@pytest.mark.parametrize("score", ["5.001", "-1", "high", "nan"])
def test_a_score_outside_its_range_is_refused(score: str, tmp_path: Path) -> None:
    header, row, _ = LAYOUTS["STS-B"]
    path = write(tmp_path / "train.tsv", header, row.replace("3.750", score))
    with pytest.raises(ConfigError, match=r"line 2: score .*expected a number from 0 to 5"):
        read_tsv(path, TASKS["STS-B"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no examples"),
        (b"sentence\tlabel\n", "no examples"),
        (b"text\tlabel\na\t1\n", "no column 'sentence'"),
        (b"\xff\xfe\n", "cannot read"),
    ],
)
def test_a_file_that_is_not_the_tasks_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_tsv(path, TASKS["SST-2"])


def test_a_missing_folder_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no folder .*RTE"):
        load_task(TASKS["RTE"], str(tmp_path))
    (tmp_path / "RTE").mkdir()
    with pytest.raises(ConfigError, match=r"cannot read .*train\.tsv"):
        load_task(TASKS["RTE"], str(tmp_path))


def test_tasks_are_chosen_by_name_or_all_together() -> None:
    assert [task.name for task in select_tasks(["RTE", "CoLA", "RTE"])] == ["RTE", "CoLA"]
    assert select_tasks(["all"]) == list(TASKS.values())
    with pytest.raises(ConfigError, match=r"got 'cola'.*CoLA"):
        select_tasks(["cola"])


def test_rows_of_the_hub_become_the_same_examples() -> None:
    pairs = datasets.Dataset.from_dict(
        {"premise": ["It rained."], "hypothesis": ["It was dry."], "label": [2], "idx": [0]}
    )
    assert from_hub(pairs, TASKS["MNLI"]) == [LAYOUTS["MNLI"][2]]
    scores = datasets.Dataset.from_dict(
        {"sentence1": ["A man plays."], "sentence2": ["Someone plays."], "label": [3.75]}
    )
    assert from_hub(scores, TASKS["STS-B"]) == [LAYOUTS["STS-B"][2]]


def test_an_unreachable_hub_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="cannot load nyu-mll/glue cola"):
        load_task(TASKS["CoLA"], "hub")


def test_the_fingerprint_changes_with_any_example(tmp_path: Path) -> None:
    folder = tmp_path / "SST-2"
    folder.mkdir()
    write(folder / "dev.tsv", "sentence\tlabel", "good\t1")
    prints = set()
    for row in ("good\t1", "good\t0", "good.\t1"):
        write(folder / "train.tsv", "sentence\tlabel", row)
        prints.add(load_task(TASKS["SST-2"], str(tmp_path)).fingerprint())
    assert len(prints) == 3
