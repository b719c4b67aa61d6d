"""finetune/predictions.py: a kept model predicts the dev set as its run did, from lines or from JSON."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from finetune.config import GlueOptions, SquadOptions, TaggingOptions
from finetune.predictions import predict
from finetune.tagging.job import MAJORITY
from foundation.config import ConfigError
from tests.finetune.conftest import FP32, run_queue

SHORT = {"deepspeed_config": FP32, "epochs": 1, "batch_size": 8, "seeds": (1,)}


def kept_model(output: Path) -> tuple[Path, Path]:
    """The only kept model, and the folder of its run's predictions."""
    (folder,) = (output / "finetuned").iterdir()
    return folder, output / "predictions" / folder.name


def predicted(model: Path, text: str, folder: Path) -> list[dict[str, Any]]:
    source = folder / "input"
    source.write_text(text)
    return list(predict(str(model), str(source)))


@pytest.fixture(scope="module")
def classifier(stock_model: Path, cola_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    given = {"model": str(stock_model), "task": ("CoLA",), "data_dir": str(cola_folder)}
    output = tmp_path_factory.mktemp("classifier")
    run_queue(GlueOptions.from_values(given | SHORT | {"output": output}))
    return kept_model(output)


@pytest.fixture(scope="module")
def tagger(stock_model: Path, tagging_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    given = {"model": str(stock_model), "task": "NER", "data_dir": tagging_folder}
    output = tmp_path_factory.mktemp("tagger")
    run_queue(TaggingOptions.from_values(given | SHORT | {"output": output}))
    return kept_model(output)


@pytest.fixture(scope="module")
def answerer(stock_model: Path, squad_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    given = {"model": str(stock_model), "data_dir": squad_folder, "max_question": 8}
    output = tmp_path_factory.mktemp("answerer")
    run_queue(SquadOptions.from_values(given | SHORT | {"output": output}))
    return kept_model(output)


def test_labels_are_those_of_the_run(classifier: tuple[Path, Path], cola_folder: Path, tmp_path: Path) -> None:
    model, answers = classifier
    dev = json.loads((answers / "examples.json").read_text())["dev"]["predicted"]
    texts = [line.split("\t")[3] for line in (cola_folder / "CoLA" / "dev.tsv").read_text().splitlines()]
    found = predicted(model, "\r\n".join(texts) + "\r\n", tmp_path)
    assert [one["label"] for one in found] == [("unacceptable", "acceptable")[int(best)] for best in dev]
    assert all(0.5 <= one["score"] <= 1 for one in found)
    assert predicted(model, "".join(json.dumps({"sentence": text}) + "\n" for text in texts), tmp_path) == found


@pytest.mark.parametrize("collapsed", ["constant prediction", None])
def test_a_model_that_collapsed_when_it_was_fine_tuned_is_named_in_one_line_beside_the_predictions(
    collapsed: str | None, classifier: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(classifier[0], tmp_path / "model"))
    record = json.loads((model / "results.json").read_text())
    (model / "results.json").write_text(json.dumps(record | {"collapsed": collapsed}))
    assert len(predicted(model, "word1 good .\nword2 bad .\n", tmp_path)) == 2
    output, errors = capsys.readouterr()
    line = f"WARNING: {model} collapsed when it was fine-tuned ({collapsed}), so these predictions say nothing about"
    assert errors.startswith(line if collapsed else "") and errors.count("\n") == bool(collapsed)
    assert "WARNING" not in output, "which is for the predictions"


def test_scores_of_pairs_are_those_of_the_run_in_the_tasks_own_range(stock_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data" / "STS-B"
    data.mkdir(parents=True)
    rows = "".join(f"word{i} .\tword{i + i % 3} .\t{5 - i % 3}\n" for i in range(24))
    for name in ("train.tsv", "dev.tsv"):
        (data / name).write_text("sentence1\tsentence2\tscore\n" + rows)
    given = {
        "model": str(stock_model),
        "task": ("STS-B",),
        "data_dir": str(data.parent),
        "output": tmp_path / "out",
    }
    run_queue(GlueOptions.from_values(given | SHORT))
    model, answers = kept_model(tmp_path / "out")
    found = predicted(model, "".join(row.rpartition("\t")[0] + "\n" for row in rows.splitlines()), tmp_path)
    dev = json.loads((answers / "examples.json").read_text())["dev"]["predicted"]
    assert [one["score"] for one in found] == pytest.approx([5 * value for value in dev], rel=1e-6)


def test_tags_are_those_of_the_run(tagger: tuple[Path, Path], tmp_path: Path) -> None:
    model, answers = tagger
    blocks = [block.splitlines() for block in (answers / "dev.conll").read_text().split("\n\n")]
    sentences = [[row.split("\t")[0] for row in block] for block in blocks]
    found = predicted(model, "\n".join(map(" ".join, sentences)), tmp_path)
    assert [one["labels"] for one in found] == [[row.split("\t")[2] for row in block] for block in blocks]
    assert [list(one["words"]) for one in found] == sentences
    assert predicted(model, "\n".join(json.dumps({"words": words}) for words in sentences), tmp_path) == found


def test_words_without_pieces_get_the_most_frequent_tag(tagger: tuple[Path, Path], tmp_path: Path) -> None:
    assert predicted(tagger[0], "\u200b\n", tmp_path) == [{"words": ("\u200b",), "labels": ["O"]}]


def test_answers_are_those_of_the_run_to_the_bit(
    answerer: tuple[Path, Path], squad_folder: Path, tmp_path: Path
) -> None:
    model, answers = answerer
    final, odds, best = (
        json.loads((answers / f"{name}.json").read_text()) for name in ("predictions", "null_odds", "nbest")
    )
    content = (squad_folder / "dev-v2.0.json").read_text()
    found = predicted(model, content, tmp_path)
    assert {one["id"]: one["answer"] for one in found} == final
    assert {one["id"]: one["no_answer"] for one in found} == odds
    assert {one["id"]: one["score"] for one in found} == {name: each[0]["probability"] for name, each in best.items()}
    (article,) = json.loads(content)["data"]
    rows = [
        {"question": entry["question"], "context": paragraph["context"]}
        for paragraph in article["paragraphs"]
        for entry in paragraph["qas"]
    ]
    by_line = predicted(model, "\n".join(map(json.dumps, rows)), tmp_path)
    assert [one["id"] for one in by_line] == [str(number) for number in range(1, len(rows) + 1)]
    assert [{**one, "id": None} for one in by_line] == [{**one, "id": None} for one in found]


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("classifier", "", "input:1: got '', expected one example per line"),
        ("classifier", "good word1\n\nbad", "input:2: got '', expected one example per line"),
        ("classifier", "good\tbad", "input:1: 2 columns, expected 1: sentence"),
        (
            "classifier",
            '{"sentence": "good"}\nbad',
            "input:2: got 'bad', expected one example per line",
        ),
        ("classifier", '{"text": "good"}', "input:1: no column 'sentence' among 'text'"),
        ("classifier", '{"sentence": 7}', "input:1: text 7, expected a string"),
        ("classifier", '{"sentence": "\\ud800"}', "input:1: unexpected end of hex escape"),
        ("tagger", '{"words": ["\\ud800"]}', "input:1: unexpected end of hex escape"),
        ("answerer", '{"a":' * 100_000, "input:1: expected a JSON object with the texts question and context"),
        ("tagger", '{"words": "good"}', "input:1: words 'good', expected a list of words"),
        ("answerer", "Who ?", "input:1: expected a JSON object with the texts question and context"),
        ("answerer", '{"question": "Who ?"}', "input:1: expected a JSON object with the texts question and context"),
        ("answerer", '{"data": [{"paragraphs": [{"qas": []}]}]}', "data.0.paragraphs.0.context: Field required"),
        ("answerer", '{"id": 1, "question": "a", "context": "b"}\n' * 2, "question 1: its id is listed 2 times"),
    ],
)
def test_a_malformed_input_is_one_error_that_names_the_line(
    kind: str, text: str, problem: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(ConfigError) as error:
        predicted(request.getfixturevalue(kind)[0], text, tmp_path)
    (line,) = error.value.problems
    assert line.startswith("input: ") and problem in line


@pytest.mark.parametrize("content", ["", "[]", "null", "[" * 100_000])
def test_a_record_that_is_no_json_object_is_refused(
    content: str, classifier: tuple[Path, Path], tmp_path: Path
) -> None:
    model = Path(shutil.copytree(classifier[0], tmp_path / "model"))
    (model / "results.json").write_text(content)
    with pytest.raises(ConfigError, match=r"model: (cannot read )?.*results\.json.*copy the model again"):
        predicted(model, "word1", tmp_path)


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        ("classifier", {"task": "Nope"}, "results.json: run.task: got 'Nope', expected one of CoLA, SST-2"),
        ("tagger", {"task": "MNLI"}, "results.json: run.task: got 'MNLI', expected one of NER, POS"),
        ("answerer", {"task": "SQuAD 3.0"}, "results.json: run.task: got 'SQuAD 3.0', expected one of 'SQuAD 2.0'"),
        ("classifier", {"seed": None}, "results.json: run.seed: got None, expected"),
    ],
)
def test_a_record_that_no_run_leaves_is_refused_by_field(
    kind: str, changes: dict[str, Any], problem: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = Path(shutil.copytree(request.getfixturevalue(kind)[0], tmp_path / "model"))
    record = json.loads((model / "results.json").read_text())
    changes = {**changes, "settings": record["run"]["settings"] | changes.get("settings", {})}
    (model / "results.json").write_text(json.dumps(record | {"run": record["run"] | changes}))
    with pytest.raises(ConfigError, match=problem):
        predicted(model, "word1", tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        *({"id2label": value} for value in (None, [], 3, {"1": "O"}, {"0": "O", "2": "B-loc"})),
        *({MAJORITY: value} for value in (None, [], "B-nowhere")),
    ],
)
def test_labels_that_a_tagger_cannot_have_are_refused(
    changes: dict[str, Any], tagger: tuple[Path, Path], tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tagger[0], tmp_path / "model"))
    described = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(described | changes))
    with pytest.raises(ConfigError, match=r"config\.json: id2label: got .* expected a label for each number from 0"):
        predicted(model, "word1", tmp_path)


def test_a_model_that_is_not_fine_tuned_is_refused(stock_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no results\.json; expected a fine-tuned model"):
        list(predict(str(stock_model), "-"))
