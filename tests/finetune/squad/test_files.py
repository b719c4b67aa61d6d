"""finetune/squad/files.py: the official JSON layout is read, and mistakes in it are located."""

import json
from pathlib import Path
from typing import Any

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.squad.files import VERSIONS, Answer, load_squad, read_squad


def entry(name: str = "q1", start: int = 4, **changes: Any) -> dict[str, Any]:
    answers = [{"text": "cat", "answer_start": start}]
    return {"id": name, "question": "Who?", "answers": answers, "is_impossible": False} | changes


def write(folder: Path, *entries: dict[str, Any], name: str = "train-v2.0.json") -> Path:
    article = {"title": "Cats", "paragraphs": [{"context": "The cat sat.", "qas": list(entries)}]}
    path = folder / name
    path.write_text(json.dumps({"version": "v2.0", "data": [article]}))
    return path


def test_the_real_dev_sets_have_their_official_sizes(shared_data: Path) -> None:
    dev = read_squad(shared_data / "squad" / "dev-v2.0.reconstructed.json")
    assert (len(dev.questions), sum(not question.answers for question in dev.questions)) == (11_873, 5_945)
    assert (len(dev.paragraphs), dev.questions[0].answers[0]) == (1_204, Answer("France", 159))
    assert dev.paragraphs[0].startswith("The Normans")
    assert len(read_squad(shared_data / "squad" / "dev-v1.1.reconstructed.json").questions) == 10_570


def test_a_folder_of_real_files_loads(shared_data: Path) -> None:
    data = load_squad(VERSIONS["2.0"], shared_data / "squad" / "article_split")
    assert (len(data.train.questions), len(data.dev.questions)) == (14_162, 2_268)
    assert all(
        data.train.paragraphs[question.paragraph].startswith(answer.text, answer.start)
        for question in data.train.questions
        for answer in question.answers[:1]
    )


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_questions_without_answers_of_squad_1_and_with_numbers_as_ids_are_read(mark: bytes, tmp_path: Path) -> None:
    """The last is of GermanQuAD; a byte order mark changes nothing."""
    old = {key: value for key, value in entry("q2").items() if key != "is_impossible"}
    path = write(tmp_path, entry(answers=[], is_impossible=True), old, entry(id=3))
    path.write_bytes(mark + path.read_bytes())
    found = [(question.id, question.answers) for question in read_squad(path).questions]
    assert found == [("q1", ()), ("q2", (Answer("cat", 4),)), ("3", (Answer("cat", 4),))]


def test_any_change_in_the_files_changes_the_fingerprint(tmp_path: Path) -> None:
    write(tmp_path, entry())
    write(tmp_path, entry(), name="dev-v2.0.json")
    before = load_squad(VERSIONS["2.0"], tmp_path).fingerprint()
    write(tmp_path, entry(question="What?"), name="dev-v2.0.json")
    assert load_squad(VERSIONS["2.0"], tmp_path).fingerprint() != before


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (
            [entry(question=None)],
            r"data\.0\.paragraphs\.0\.qas\.0\.question: got None: Input should be a valid string; c",
        ),
        ([entry(answers=[{"text": "cat"}])], r"qas\.0\.answers\.0\.answer_start: got {'text': 'cat'}: Field required"),
        ([{"id": "q1", "question": "Who?"}], "question q1: no field answers"),
        ([entry(), entry()], "question q1: its id is listed 2 times, expected once"),
        ([entry(answers=[])], "question q1: is_impossible is False with 0 answers"),
        ([entry(is_impossible=True)], "question q1: is_impossible is True with 1 answers"),
        ([entry(answers=[{"text": " ", "answer_start": 3}])], "question q1: an answer has no text"),
        ([], "no questions"),
    ],
)
def test_a_malformed_entry_is_named(entries: list[dict[str, Any]], problem: str, tmp_path: Path) -> None:
    path = write(tmp_path, *entries)
    with pytest.raises(ConfigError, match=problem) as error:
        read_squad(path)
    assert str(path) in str(error.value)


def test_a_misplaced_answer_is_refused_for_training_but_not_for_scoring(tmp_path: Path) -> None:
    write(tmp_path, entry(start=5), name="dev-v2.0.json")
    write(tmp_path, entry())
    assert load_squad(VERSIONS["2.0"], tmp_path).dev.questions[0].answers[0].start == 5
    write(tmp_path, *(entry(f"q{number}", start=5) for number in range(8)))
    with pytest.raises(ConfigError) as error:
        load_squad(VERSIONS["2.0"], tmp_path)
    assert len(error.value.problems) == 6
    assert "question q0: answer 'cat' is not at character 5" in error.value.problems[0]
    assert "3 more malformed entries" in error.value.problems[5]


@pytest.mark.parametrize("wrong", ["train-v1.1.json", "dev-v1.1.json"])
def test_a_question_without_an_answer_is_refused_in_squad_1(wrong: str, tmp_path: Path) -> None:
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        entries = [entry(), entry("q2", answers=[], is_impossible=True)]
        write(tmp_path, *(entries if name == wrong else entries[:1]), name=name)
    with pytest.raises(ConfigError, match=f"{wrong}: question q2: no answer, expected one in SQuAD 1.1; remove it"):
        load_squad(VERSIONS["1.1"], tmp_path)
    write(tmp_path, entry(), name=wrong)
    assert len(load_squad(VERSIONS["1.1"], tmp_path).dev.questions) == 1


@pytest.mark.parametrize("content", [None, b"\xff{", b"[]", b'{"data": 1}'])
def test_a_file_that_is_not_squad_is_refused_by_name(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "train-v1.1.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"train-v1\.1\.json"):
        load_squad(VERSIONS["1.1"], tmp_path)
