"""finetune/running/kept.py: a fine-tuned model is a Hugging Face folder that predicts elsewhere as its run did."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from finetune.config import GlueOptions, SquadOptions, TaggingOptions
from finetune.glue import job as glue
from finetune.glue.tasks import TASKS
from finetune.running.kept import choose, settle
from finetune.running.model_folder import open_model
from finetune.running.records import RunRecord, append_record, read_records
from finetune.squad import job as squad
from finetune.tagging import job as tagging
from foundation.locks import Lock
from tests.finetune.conftest import make_record

PYTHONS = [sys.executable, *filter(None, [os.environ.get("ELECTRA_SAMPLER_OTHER_PYTHON")])]
with_every_transformers = pytest.mark.parametrize("python", PYTHONS, ids=["this", "other"][: len(PYTHONS)])

CLASSIFIES = """
import json, sys
from transformers import pipeline
predict = pipeline("text-classification", sys.argv[1], trust_remote_code=True, device="cpu")
print(json.dumps([predict(text, truncation=True)[0] for text in json.loads(sys.argv[2])]))
"""
TAGS = """
import json, sys
from transformers import pipeline
predict = pipeline("token-classification", sys.argv[1], trust_remote_code=True, device="cpu", ignore_labels=[])
print(json.dumps([[found["entity"] for found in predict(text)] for text in json.loads(sys.argv[2])]))
"""
ANSWERS = """
import json, sys, torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer
model = AutoModelForQuestionAnswering.from_pretrained(sys.argv[1], trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)
nulls = []
for question, paragraph in json.loads(sys.argv[2]):
    with torch.no_grad():
        output = model(**tokenizer(question, paragraph, return_tensors="pt"))
    if "cls_logits" in output:
        nulls.append(output.cls_logits.item())
    else:
        nulls.append((output.start_logits[0, 0] + output.end_logits[0, 0]).item())
print(json.dumps(nulls))
"""


def elsewhere(python: str, program: str, model: Path, inputs: list, folder: Path) -> list:
    """The output of a program run by an isolated Python in another folder."""
    given = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [python, "-I", "-c", program, str(model.resolve()), json.dumps(inputs)]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | given, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list = json.loads(done.stdout.splitlines()[-1])
    return found


def kept_model(output: Path) -> tuple[Path, Path]:
    """The only kept model, and the folder of its run's predictions."""
    (folder,) = (output / "finetuned").iterdir()
    return folder, output / "predictions" / folder.name


@with_every_transformers
@pytest.mark.parametrize(("model", "head"), [("stock_model", "electra"), ("pretrained_model", "hf")])
def test_a_pipeline_elsewhere_classifies_as_the_run_did(
    model: str, head: str, python: str, cola_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = str(request.getfixturevalue(model))
    given = {"model": source, "task": ("CoLA",), "data_dir": str(cola_folder), "output": tmp_path / "out"}
    glue.run_queue(GlueOptions.from_values(given | {"epochs": 2, "batch_size": 8, "seeds": (1,), "head": head}))
    folder, answers = kept_model(tmp_path / "out")
    dev = json.loads((answers / "examples.json").read_text())["dev"]
    texts = [line.split("\t")[3] for line in (cola_folder / "CoLA" / "dev.tsv").read_text().splitlines()]
    found = elsewhere(python, CLASSIFIES, folder, texts, tmp_path)
    assert [one["label"] for one in found] == [("unacceptable", "acceptable")[int(best)] for best in dev["predicted"]]
    assert "pipeline_tag: text-classification" in (folder / "README.md").read_text()


@pytest.mark.parametrize("plain_scores", [False, True])
def test_a_pipeline_elsewhere_gives_a_regressions_score(stock_model: Path, tmp_path: Path, plain_scores: bool) -> None:
    data = tmp_path / "data" / "STS-B"
    data.mkdir(parents=True)
    rows = "".join(f"word{i} .\tword{i + i % 3} .\t{5 - i % 3}\n" for i in range(24))
    for name in ("train.tsv", "dev.tsv"):
        (data / name).write_text("sentence1\tsentence2\tscore\n" + rows)
    given = {"model": str(stock_model), "task": ("STS-B",), "data_dir": str(data.parent), "output": tmp_path / "out"}
    short = {"epochs": 1, "batch_size": 8, "seeds": (1,), "plain_scores": plain_scores}
    glue.run_queue(GlueOptions.from_values(given | short))
    folder, answers = kept_model(tmp_path / "out")
    texts = [dict(zip(("text", "text_pair"), row.split("\t"), strict=False)) for row in rows.splitlines()]
    program = CLASSIFIES.replace("(text, truncation=True)[0]", "(text, truncation=True)")
    found = [one["score"] for one in elsewhere(sys.executable, program, folder, texts, tmp_path)]
    dev = json.loads((answers / "examples.json").read_text())["dev"]
    assert found == pytest.approx([5 * value for value in dev["predicted"]], abs=1e-5)


@with_every_transformers
def test_a_pipeline_elsewhere_tags_as_the_run_did(
    python: str, pretrained_model: Path, tagging_folder: Path, tmp_path: Path
) -> None:
    given = {"model": str(pretrained_model), "task": "NER", "data_dir": tagging_folder, "output": tmp_path / "out"}
    tagging.run_queue(TaggingOptions.from_values(given | {"epochs": 1, "batch_size": 8, "seeds": (1,)}))
    folder, answers = kept_model(tmp_path / "out")
    tokenizer = open_model(str(folder)).tokenizer
    texts, expected = [], []
    for block in (answers / "dev.conll").read_text().split("\n\n"):
        words, _, labels = zip(*(row.split("\t") for row in block.splitlines()), strict=True)
        sizes = [len(tokenizer.tokenize(word)) for word in words]
        firsts = [sum(sizes[:place]) for place in range(len(words))]
        texts.append(" ".join(words))
        expected.append(dict(zip(firsts, labels, strict=True)))
    found = elsewhere(python, TAGS, folder, texts, tmp_path)
    assert [{place: labels[place] for place in wanted} for labels, wanted in zip(found, expected, strict=True)] == (
        expected
    )


@with_every_transformers
@pytest.mark.parametrize("head", ["electra", "xlnet", "hf"])
def test_the_class_elsewhere_scores_unanswerable_questions_as_the_run_did(
    head: str, python: str, stock_model: Path, squad_folder: Path, tmp_path: Path
) -> None:
    given = {"model": str(stock_model), "data_dir": squad_folder, "output": tmp_path / "out", "head": head}
    squad.run_queue(SquadOptions.from_values(given | {"epochs": 1, "batch_size": 8, "seeds": (1,), "max_question": 8}))
    folder, answers = kept_model(tmp_path / "out")
    (article,) = json.loads((squad_folder / "dev-v2.0.json").read_text())["data"]
    asked = [(entry["question"], part["context"]) for part in article["paragraphs"] for entry in part["qas"]]
    found = elsewhere(python, ANSWERS, folder, asked, tmp_path)
    odds = list(json.loads((answers / "null_odds.json").read_text()).values())
    best = [each[0]["score"] for each in json.loads((answers / "nbest.json").read_text()).values()]
    ours = [odd + score for odd, score in zip(odds, best, strict=True)] if head == "hf" else odds
    assert found == pytest.approx(ours, abs=1e-5)


def records_of(*scores: float) -> list[RunRecord]:
    return [make_record(score, seed=seed) for seed, score in enumerate(scores, 1)]


def test_the_median_is_a_run_and_the_lower_one_of_an_even_number() -> None:
    records = records_of(0.5, 0.1, 0.9, 0.3)
    for keep, seeds in (("median", [4]), ("best", [3]), ("all", [2, 4, 1, 3]), ("none", [])):
        assert [record.run.seed for record in choose(keep, records, TASKS["CoLA"])] == seeds
    assert [record.run.seed for record in choose("median", records_of(0.2, 0.2, 0.2), TASKS["CoLA"])] == [2]


def candidate(output: Path, record: RunRecord) -> Path:
    folder = output / "candidates" / record.run.folder_name()
    folder.mkdir(parents=True)
    (folder / "results.json").write_text("{}")
    return folder


def test_candidates_are_chosen_when_all_seeds_are_done_and_nobody_works_on_the_task(tmp_path: Path) -> None:
    records = records_of(0.5, 0.1, 0.9)
    folders = [candidate(tmp_path, record) for record in records]
    (half,) = [folder.with_name(folder.name + ".tmp") for folder in folders[:1]]
    half.mkdir()
    said: list[str] = []

    def settled() -> list[str]:
        return settle(tmp_path, tmp_path / "locks", "median", [record.run for record in records], TASKS, said.append)

    for record in records[:2]:
        append_record(tmp_path / "results.jsonl", record)
    assert settled() == [] and all(folder.is_dir() for folder in folders)
    append_record(tmp_path / "results.jsonl", records[2])
    with Lock(tmp_path / "locks" / make_record(seed=9).run.folder_name()):
        assert settled() == [] and all(folder.is_dir() for folder in folders)
    assert settled() == []
    assert [path.name for path in (tmp_path / "finetuned").iterdir()] == [folders[0].name]
    assert not list((tmp_path / "candidates").iterdir())
    assert [line.split(":")[0] for line in said] == ["CoLA seed 1 (median of 3, matthews 0.5000)"]
    append_record(tmp_path / "results.jsonl", make_record(0.6, seed=4))
    append_record(tmp_path / "results.jsonl", make_record(0.7, seed=5))
    (line,) = settled()
    assert "CoLA seed 4 (median of 5" in line and "no model" in line
    assert [path.name for path in (tmp_path / "finetuned").iterdir()] == [folders[0].name]


def test_keep_none_writes_no_model(stock_model: Path, cola_folder: Path, tmp_path: Path) -> None:
    given = {"model": str(stock_model), "task": ("CoLA",), "data_dir": str(cola_folder), "output": tmp_path}
    glue.run_queue(GlueOptions.from_values(given | {"epochs": 1, "seeds": (1,), "keep": "none"}))
    assert len(read_records(tmp_path / "results.jsonl")) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["locks", "predictions", "results.jsonl"]
