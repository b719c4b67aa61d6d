"""finetune/running/model_folder.py: which folders can be fine-tuned, and how a model is identified."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tokenizers import normalizers

from data_prep.tokens import SPECIAL_TOKENS, SubwordTokenizer, from_vocabulary
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.locks import Lock
from finetune.config import GlueOptions, SquadOptions, TaggingOptions
from finetune.glue.tasks import TASKS
from finetune.running.job import HuggingFaceModel
from finetune.running.model_folder import card
from finetune.running.records import RunRecord, append_record, choose_records, read_records
from finetune.running.run_list import keep_models
from pretrain.huggingface.folders import load_tokenizer
from pretrain.huggingface.stored import read_stored
from tests.finetune.conftest import FP32, make_record, run_queue
from tests.warm import outputs, run, two_ranks


@pytest.fixture
def copy(stock_model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stock_model, tmp_path / "model")


def test_a_folder_without_tokenizer_is_refused(copy: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (copy / name).unlink()
    with pytest.raises(ConfigError, match=r"no tokenizer; save one there, expected one of tokenizer\.json, vocab\.txt"):
        load_tokenizer(copy)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tokenizer.json", "{", r"^model: no tokenizer can be read from .*model \(.*EOF"),
        ("vocab.txt", "one\ntwo\n", r"^model: .*model lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]; add"),
        ("tokenizer_config.json", '{"pad_token": "[NOTHING]"}', r"model lacks \[NOTHING\]; add"),
        ("tokenizer_config.json", '{"tokenizer_class": "BertJapaneseTokenizer"}', "tokenizer_class 'BertJapanese"),
        ("added_tokens.json", '{"covid-19": 51}', r"added_tokens\.json .* adds 'covid-19'"),
        ("tokenizer_config.json", "[]", r"no tokenizer can be read from .*model \("),
        ("tokenizer_config.json", "[" * 100_000, r"no tokenizer can be read from .*model \("),
    ],
)
def test_a_damaged_tokenizer_is_refused(name: str, content: str, problem: str, copy: Path) -> None:
    if name == "vocab.txt" or "tokenizer_class" in content:  # a tokenizer.json would define it
        (copy / "tokenizer.json").unlink()
    (copy / name).write_text(content)
    with pytest.raises(ConfigError, match=problem):
        load_tokenizer(copy)


def test_a_tokenizer_with_ids_beyond_the_vocabulary_is_refused(copy: Path) -> None:
    layout = json.loads((copy / "tokenizer.json").read_text())
    layout["model"]["vocab"]["word1"] = 10**6
    (copy / "tokenizer.json").write_text(json.dumps(layout))
    with pytest.raises(ConfigError, match=r"has 1000001 pieces, expected at most 51; export"):
        read_stored(copy).load_tokenizer()


def test_a_tokenizer_other_than_berts_gives_the_ids_of_the_shards(copy: Path) -> None:
    made = from_vocabulary([*SPECIAL_TOKENS, "word", "Ⅳ", "iv", "é", "e"], normalizers.NFKC())
    tokenizer = SubwordTokenizer(made)
    tokenizer.save(copy)
    text = "word Ⅳ é iv e"
    assert load_tokenizer(copy)(text).input_ids == [2, *tokenizer.encode([text])[0], 3]


PYTHONS = [sys.executable, *filter(None, [os.environ.get("ELECTRA_SAMPLER_OTHER_PYTHON")])]
with_every_transformers = pytest.mark.parametrize("python", PYTHONS, ids=["this", "other"][: len(PYTHONS)])

Elsewhere = Callable[[str, str, Path, list], list]
SHORT = {"epochs": 1, "batch_size": 8, "seeds": (1,), "deepspeed_config": FP32}
"""In fp32, which is exact to the last digits on every machine."""

CLASSIFIES = """
from transformers import pipeline
predict = pipeline("text-classification", model, trust_remote_code=True, device="cpu")
found = [predict(text, truncation=True)[0] for text in inputs]
"""
TAGS = """
from transformers import pipeline
predict = pipeline("token-classification", model, trust_remote_code=True, device="cpu", ignore_labels=[])
found = [[found["entity"] for found in predict(text)] for text in inputs]
"""
ANSWERS = """
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer
reader = AutoModelForQuestionAnswering.from_pretrained(model, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
found = []
for question, paragraph in inputs:
    tokens = tokenizer(question, paragraph, return_tensors="pt", return_offsets_mapping=True)
    places = tokens.pop("offset_mapping")[0].tolist()
    inside = [place for place, segment in enumerate(tokens["token_type_ids"][0]) if segment][:-1]
    with torch.no_grad():
        output = reader(**tokens)
    starts, ends = output.start_top_index[0], output.end_top_index[0].view(output.start_top_index.shape[1], -1)
    scores = output.start_top_log_probs[0][:, None] + output.end_top_log_probs[0].view_as(ends)
    spans = [(starts[t].item(), ends[t, k].item(), scores[t, k].item()) for t, k in scores.isfinite().nonzero()]
    score, first, last = max((s, i, j) for i, j, s in spans if i in inside and j in inside and i <= j < i + 30)
    found.append([paragraph[places[first][0] : places[last][1]], score, output.cls_logits.item()])
"""
ASKED = """
import json, sys
for line in sys.stdin:
    program, model, inputs = json.loads(line)
    names = {"model": model, "inputs": inputs}
    exec(program, names)
    print("found " + json.dumps(names["found"]), flush=True)
"""
"""Runs the programs that it is sent, so that they import Transformers once."""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """What a program of an isolated Python in another folder finds for a model and inputs."""
    folder, environment = tmp_path_factory.mktemp("elsewhere"), os.environ | {"HF_HUB_OFFLINE": "1"}
    environment |= {"HF_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    started: dict[str, subprocess.Popen[str]] = {}

    def ask(python: str, program: str, model: Path, inputs: list) -> list:
        if python not in started:
            started[python] = subprocess.Popen(
                [python, "-I", "-c", ASKED],
                cwd=folder,
                env=environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        process = started[python]
        assert process.stdout is not None
        print(json.dumps([program, str(model.resolve()), inputs]), file=process.stdin, flush=True)
        said = []
        for line in process.stdout:
            if line.startswith("found "):
                found: list = json.loads(line.removeprefix("found "))
                return found
            said.append(line)
        raise AssertionError("".join(said))

    yield ask
    for process in started.values():
        process.communicate(timeout=60)


def kept_model(output: Path) -> tuple[Path, Path]:
    """The only kept model, and the folder of its run's predictions."""
    (folder,) = (output / "finetuned").iterdir()
    return folder, output / "predictions" / folder.name


@with_every_transformers
@pytest.mark.parametrize(
    ("model", "head"),
    [("stock_model", "electra"), ("pretrained_model", "hf"), ("modern_model", "electra"), ("bert_model", "electra")],
)
def test_a_pipeline_elsewhere_classifies_as_the_run_did(
    model: str,
    head: str,
    python: str,
    elsewhere: Elsewhere,
    cola_folder: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    source = str(request.getfixturevalue(model))
    given = {"model": source, "task": ("CoLA",), "data_dir": str(cola_folder), "head": head}
    run_queue(GlueOptions, tmp_path / "out", **given | SHORT | {"epochs": 2})
    folder, answers = kept_model(tmp_path / "out")
    dev = json.loads((answers / "examples.json").read_text())["dev"]
    texts = [line.split("\t")[3] for line in (cola_folder / "CoLA" / "dev.tsv").read_text().splitlines()]
    found = elsewhere(python, CLASSIFIES, folder, texts)
    assert [one["label"] for one in found] == [("unacceptable", "acceptable")[int(best)] for best in dev["predicted"]]
    described = (folder / "README.md").read_text()
    assert f'pipeline_tag: text-classification\nbase_model: ["{Path(source).name}"]\n' in described


def test_the_card_names_the_license_of_its_source_and_no_source_of_untrained_weights(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    made, name = HuggingFaceModel("", {}, {}, "text-classification", ""), f"`{tmp_path.name}` (license apache-2.0)\n"
    assert f"# CoLA, fine-tuned from {name}" in card(made, make_record(model=str(tmp_path)), ())
    untrained = card(made, make_record(model=str(tmp_path), random_weights=True), ())
    assert f"untrained weights of the shape of {name}" in untrained and "base_model" not in untrained


def test_a_pipeline_elsewhere_gives_a_regressions_score(
    elsewhere: Elsewhere, stock_model: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data" / "STS-B"
    data.mkdir(parents=True)
    rows = "".join(f"word{i} .\tword{i + i % 3} .\t{5 - i % 3}\n" for i in range(24))
    for name in ("train.tsv", "dev.tsv"):
        (data / name).write_text("sentence1\tsentence2\tscore\n" + rows)
    given = {"model": str(stock_model), "task": ("STS-B",), "data_dir": str(data.parent)}
    run_queue(GlueOptions, tmp_path / "out", **given | SHORT)
    folder, answers = kept_model(tmp_path / "out")
    texts = [dict(zip(("text", "text_pair"), row.split("\t"), strict=False)) for row in rows.splitlines()]
    program = CLASSIFIES.replace("(text, truncation=True)[0]", "(text, truncation=True)")
    found = [one["score"] for one in elsewhere(sys.executable, program, folder, texts)]
    dev = json.loads((answers / "examples.json").read_text())["dev"]
    assert found == pytest.approx([5 * value for value in dev["predicted"]], abs=1e-5)


@with_every_transformers
@pytest.mark.parametrize("model", ["pretrained_model", "modern_model"])
def test_a_pipeline_elsewhere_tags_as_the_run_did(
    model: str,
    python: str,
    elsewhere: Elsewhere,
    tagging_folder: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    source = str(request.getfixturevalue(model))
    run_queue(TaggingOptions, tmp_path / "out", model=source, task="NER", data_dir=tagging_folder, **SHORT)
    folder, answers = kept_model(tmp_path / "out")
    tokenizer = read_stored(folder).load_tokenizer()
    texts, expected = [], []
    for block in (answers / "dev.conll").read_text().split("\n\n"):
        words, _, labels = zip(*(row.split("\t") for row in block.splitlines()), strict=True)
        sizes = [len(tokenizer.tokenize(word)) for word in words]
        firsts = [sum(sizes[:place]) for place in range(len(words))]
        texts.append(" ".join(words))
        expected.append(dict(zip(firsts, labels, strict=True)))
    found = elsewhere(python, TAGS, folder, texts)
    assert [{place: labels[place] for place in wanted} for labels, wanted in zip(found, expected, strict=True)] == (
        expected
    )


@with_every_transformers
@pytest.mark.parametrize(
    ("model", "head"), [("stock_model", "electra"), ("stock_model", "xlnet"), ("modern_model", "electra")]
)
def test_the_class_elsewhere_answers_as_the_run_did(
    model: str,
    head: str,
    python: str,
    elsewhere: Elsewhere,
    squad_folder: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    source = str(request.getfixturevalue(model))
    given = {"model": source, "data_dir": squad_folder, "head": head, "max_question": 8}
    run_queue(SquadOptions, tmp_path / "out", **given | SHORT)
    folder, answers = kept_model(tmp_path / "out")
    (article,) = json.loads((squad_folder / "dev-v2.0.json").read_text())["data"]
    asked = [(entry["question"], part["context"]) for part in article["paragraphs"] for entry in part["qas"]]
    texts, scores, nulls = zip(*elsewhere(python, ANSWERS, folder, asked), strict=True)
    best = [each[0] for each in json.loads((answers / "nbest.json").read_text()).values()]
    assert list(texts) == [answer["text"] for answer in best]
    assert list(scores) == pytest.approx([answer["score"] for answer in best], abs=1e-6)
    assert list(nulls) == pytest.approx(list(json.loads((answers / "null_odds.json").read_text()).values()), abs=1e-6)


def records_of(*scores: float) -> list[RunRecord]:
    return [make_record(score, seed=seed) for seed, score in enumerate(scores, 1)]


def test_the_median_is_a_run_and_the_lower_one_of_an_even_number() -> None:
    records = records_of(0.5, 0.1, 0.9, 0.3)
    for keep, seeds in (("median", [4]), ("best", [3]), ("all", [2, 4, 1, 3]), ("none", [])):
        assert [record.run.seed for record in choose_records(keep, records, TASKS["CoLA"])] == seeds
    assert [record.run.seed for record in choose_records("median", records_of(0.2, 0.2, 0.2), TASKS["CoLA"])] == [2]


def candidate(output: Path, record: RunRecord) -> Path:
    folder = output / "candidates" / record.run.folder_name()
    folder.mkdir(parents=True)
    (folder / "results.json").write_text("{}")
    return folder


def test_candidates_are_chosen_when_all_seeds_are_done_and_nobody_works_on_the_task(tmp_path: Path) -> None:
    records = records_of(0.5, 0.1, 0.9)
    folders = [candidate(tmp_path, record) for record in records]
    folders[0].with_name(folders[0].name + ".123.tmp").mkdir()

    def kept() -> list[str]:
        return list(keep_models(tmp_path, "median", [record.run for record in records], TASKS))

    for record in records[:2]:
        append_record(tmp_path / "results.jsonl", record)
    assert kept() == [] and all(folder.is_dir() for folder in folders)
    append_record(tmp_path / "results.jsonl", records[2])
    with Lock(tmp_path / "locks" / make_record(seed=9).run.folder_name()):
        assert kept() == [] and all(folder.is_dir() for folder in folders)
    said = kept()
    assert [path.name for path in (tmp_path / "finetuned").iterdir()] == [folders[0].name]
    assert not list((tmp_path / "candidates").iterdir())
    assert [line.split(":")[0] for line in said] == ["CoLA seed 1 (median of 3, matthews 0.5000)"]
    append_record(tmp_path / "results.jsonl", make_record(0.6, seed=4))
    append_record(tmp_path / "results.jsonl", make_record(0.7, seed=5))
    (line,) = kept()
    assert "CoLA seed 4 (median of 5" in line and "no model was saved" in line
    assert [path.name for path in (tmp_path / "finetuned").iterdir()] == [folders[0].name]


FILES = ["README.md", "config.json", "model.safetensors", "results.json", "tokenizer.json", "tokenizer_config.json"]
KILLED = """
import os, signal, sys
from finetune.config import GlueOptions
from finetune.glue.job import load
from finetune.running.run_list import run_queue
from electra_sampler.foundation.command_line import parse_options

def kill(event, arguments):
    if moment(event, *map(str, arguments[:2])):
        os.kill(os.getpid(), signal.SIGKILL)

moment = eval("lambda event, first='', second='': " + os.environ["MOMENT"])
sys.addaudithook(kill)
run_queue(parse_options(GlueOptions, ""), load)
"""
MOMENTS = {
    "while_a_candidate_is_written": "event == 'open' and 'candidates/' in first and first.endswith('README.md.tmp')",
    "before_its_record": "event == 'open' and first.endswith('results.jsonl') and second.startswith('a')",
    "before_the_model_is_kept": "event == 'os.rename' and 'finetuned/' in second",
}


def keep(model: Path, data: Path, output: Path, **options: object) -> list[RunRecord]:
    given = {"model": str(model), "task": ("CoLA",), "data_dir": str(data)} | SHORT
    return run_queue(GlueOptions, output, **given | {"batch_size": 64, "seeds": (1, 2)} | options)


@pytest.fixture(scope="module")
def undisturbed(stock_model: Path, cola_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of two seeds, both kept."""
    output = tmp_path_factory.mktemp("undisturbed")
    keep(stock_model, cola_folder, output, keep="all")
    return output


def test_all_keeps_every_seed_with_its_record_and_best_the_best(
    undisturbed: Path, stock_model: Path, cola_folder: Path, tmp_path: Path
) -> None:
    records = {record.run.folder_name(): record for record in read_records(undisturbed / "results.jsonl")}
    kept = {
        folder.name: json.loads((folder / "results.json").read_text())
        for folder in (undisturbed / "finetuned").iterdir()
    }
    assert kept == {name: record.model_dump(mode="json") for name, record in records.items()}
    assert all((undisturbed / "finetuned" / name / file).is_file() for name in kept for file in FILES)
    configs = [json.loads(path.read_text()) for path in sorted((undisturbed / "finetuned").glob("*/*config.json"))]
    assert [one.get("hidden_dropout_prob", one.get("model_max_length")) for one in configs] == [0.1, 32, 0.1, 32]
    keep(stock_model, cola_folder, tmp_path, keep="best")
    (best,) = (tmp_path / "finetuned").iterdir()
    assert records[best.name].last["dev"]["matthews"] == max(one.last["dev"]["matthews"] for one in records.values())


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_killed_while_it_keeps_a_model_resumes_to_the_same_whole_folder(
    moment: str, undisturbed: Path, stock_model: Path, cola_folder: Path, tmp_path: Path
) -> None:
    in_fp32 = ("--deepspeed_config", FP32)
    options = ("--task", "CoLA", "--data_dir", cola_folder, "--seeds", "1", "2", "--epochs", "1", "--batch_size", "64")
    program, output = tmp_path / "killed.py", tmp_path / "out"
    program.write_text(KILLED)
    killed = run(
        program, "--model", stock_model, "--output", output, *options, *in_fp32, env={"MOMENT": MOMENTS[moment]}
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(keep(stock_model, cola_folder, output)) == 2
    (folder,) = (output / "finetuned").iterdir()
    assert not list((output / "candidates").iterdir())
    whole = undisturbed / "finetuned" / folder.name
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in whole.iterdir())
    ours, expected = (load_file(path / "model.safetensors") for path in (folder, whole))
    assert all(ours[name].allclose(weight, rtol=0, atol=1e-6) for name, weight in expected.items())


@pytest.mark.long
def test_two_ranks_under_zero_3_keep_the_whole_model(
    undisturbed: Path, stock_model: Path, cola_folder: Path, tmp_path: Path, elsewhere: Elsewhere
) -> None:
    paths = ("--model", stock_model, "--data_dir", cola_folder, "--output", tmp_path, "--task", "CoLA")
    short = ("--epochs", "1", "--batch_size", "64", "--seeds", "1", "--set", "deepspeed.zero_optimization.stage=3")
    outputs(two_ranks("finetune/run_glue.py", *paths, *short))
    (folder,) = (tmp_path / "finetuned").iterdir()
    sharded, whole = (
        load_file(path / "model.safetensors") for path in (folder, undisturbed / "finetuned" / folder.name)
    )
    assert {name: weight.shape for name, weight in sharded.items()} == {
        name: weight.shape for name, weight in whole.items()
    }
    texts = [line.split("\t")[3] for line in (cola_folder / "CoLA" / "dev.tsv").read_text().splitlines()]
    answers = json.loads((tmp_path / "predictions" / folder.name / "examples.json").read_text())["dev"]["predicted"]
    labels = [("unacceptable", "acceptable")[int(best)] for best in answers]
    assert [one["label"] for one in elsewhere(sys.executable, CLASSIFIES, folder, texts)] == labels


def test_keep_none_writes_no_model(stock_model: Path, cola_folder: Path, tmp_path: Path) -> None:
    assert len(keep(stock_model, cola_folder, tmp_path, keep="none")) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["locks", "predictions", "results.jsonl"]
