"""Predictions of a fine-tuned model for new examples, by the functions that predict the dev set.

A prediction is a dictionary with the keys

- label and score (the label's probability) for a text, or only score for a regression;
- words and labels for a sentence;
- id, answer ("" for none), score (the answer's probability among the best ones) and no_answer (a logit) for a question.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic_core import from_json
from torch import nn

from finetune.config import GlueConfig, SquadConfig, TaggingConfig
from finetune.glue import job as glue
from finetune.glue import tasks as glue_tasks
from finetune.running.job import Job
from finetune.running.model_folder import RESULTS, ModelFolder, open_model
from finetune.running.records import RunIdentity, RunRecord
from finetune.squad import files as squad_files
from finetune.squad import job as squad
from finetune.squad.features import make_windows
from finetune.tagging import files as tagging_files
from finetune.tagging import job as tagging
from foundation.command_line import print_warning
from foundation.config import ConfigError, one_of, read_object, shown
from foundation.files import require_file_or_folder
from pretrain.huggingface.folders import fill, read_config, read_weights
from pretrain.job.processes import World
from pretrain.model import cpu_ops
from pretrain.model.encoder import ElectraEncoder, EncoderConfig

Given = str | dict[str, Any]
"""An example as it was given: a line of text, or the JSON object in it."""
Parsed = TypeVar("Parsed")


def predict(name: str, source: str) -> Iterator[dict[str, Any]]:
    """Yields the prediction of the model `name` for each example of the file `source` (`-`: standard input), in order.

    Raises:
        ConfigError: there is no such model or file, or an example is malformed.
    """
    model = open_model(name)
    path = model.path / RESULTS
    if not path.is_file():
        raise ConfigError(
            f"model: {name} has no {RESULTS}; expected a fine-tuned model, a folder in OUTPUT/finetuned of run_glue.py,"
            " run_tagging.py or run_squad.py"
        )
    record = RunRecord.from_values(read_object(path, "model", "copy the model again"), f"model: {path}")
    kinds: dict[type, tuple[Callable[..., Iterator[dict[str, Any]]], Mapping[str, Any]]] = {
        GlueConfig: (classify, glue_tasks.TASKS),
        SquadConfig: (answer, squad_files.TASKS),
        TaggingConfig: (tag, tagging_files.TASKS),
    }
    predict_with, tasks = kinds[type(record.run.settings)]
    if record.run.task not in tasks:
        expected = one_of(record.run.task, tasks)
        raise ConfigError(f"model: {path}: run.task: got {shown(record.run.task)}, {expected}; copy the model again")
    yield from predict_with(model, record.run, source, read_text(source))
    if record.collapsed:
        print_warning(
            f"{name} collapsed when it was fine-tuned ({record.collapsed}), so these predictions say nothing about the"
            " examples; use the model of another seed, or train for more epochs",
            to=sys.stderr,
        )


def read_text(name: str) -> str:
    """Reads a file, or standard input if its name is `-`.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    if name != "-":
        require_file_or_folder(Path(name), "input", "a file of text in UTF-8, or - for standard input")
    try:
        return (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"input: cannot read {name} ({error}); expected a file of text in UTF-8, or -") from None


def parse_lines(name: str, text: str, parse: Callable[[Given], Parsed]) -> list[Parsed]:
    """Parses every line of the input `name`; if the first line is a JSON object, every line must be one.

    Raises:
        ConfigError: a line, named by its number, is empty or malformed.
    """
    found = []
    lines = text.rstrip("\r\n").split("\n")
    as_json = is_object(lines[0])
    for number, line in enumerate(lines, 1):
        try:
            if not line.strip() or (as_json and not is_object(line)):
                raise ValueError(
                    f"got {shown(line)}, expected one example per line, with JSON objects on all lines or on none"
                )
            found.append(parse(from_json(line) if as_json else line.rstrip("\r")))
        except ValueError as error:
            raise ConfigError(f"input: {name}:{number}: {error}") from None
    return found


def is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def load(model: ModelFolder, job: Job) -> tuple[nn.Module, World]:
    """Loads a kept model's weights into the model that `job` builds; returns it and a world of this single process."""
    cuda = torch.cuda.is_available()
    if not cuda:
        cpu_ops.use()
    device = torch.device("cuda" if cuda else "cpu")
    assert isinstance(model.config, EncoderConfig)  # no other is kept
    module = job.build(ElectraEncoder(model.config)).eval()
    weights = {
        name if name.startswith("electra.") else "head." + re.sub(r"^(classifier|span_head)\.", "", name): weight
        for name, weight in read_weights(model.path).items()
    }
    fill(module, weights, model.path)
    return module.to(device), World(0, 1, device)


def classify(model: ModelFolder, run: RunIdentity, name: str, text: str) -> Iterator[dict[str, Any]]:
    """Yields the class predicted for each line of `text`, or its score if the task is a regression."""
    assert isinstance(run.settings, GlueConfig)
    task = glue_tasks.TASKS[run.task]

    def parse(given: Given) -> glue_tasks.Example:
        if isinstance(given, str):
            cells = given.split("\t")
            if len(cells) != len(task.text_columns):
                columns = ", a tab, ".join(task.text_columns)
                raise ValueError(f"{len(cells)} columns, expected {len(task.text_columns)}: {columns}")
            given = dict(zip(task.text_columns, cells, strict=True))
        return glue_tasks.read_example(given, task, labeled=False)

    job = glue.GlueJob(
        task=task,
        settings=run.settings.model_copy(update={"head": "hf"}),  # as the folder has it
        pad_id=model.tokenizer.pad_token_id,
    )
    features = glue.tokenize_examples(parse_lines(name, text, parse), model.tokenizer, run.settings.max_length)
    for logits_C in job.outputs(features, *load(model, job)):
        if not task.classes:
            yield {"score": float(logits_C[0])}
            continue
        share_C = np.exp(logits_C - logits_C.max())
        best = int(logits_C.argmax())
        yield {"label": (task.labels or task.classes)[best], "score": float(share_C[best] / share_C.sum())}


def tag(model: ModelFolder, run: RunIdentity, name: str, text: str) -> Iterator[dict[str, Any]]:
    """Yields the label of every word of each sentence."""

    def parse(given: Given) -> tagging_files.Sentence:
        words = re.findall("[^ \t]+", given) if isinstance(given, str) else given.get("words")
        if not (isinstance(words, list) and words and all(isinstance(word, str) and word for word in words)):
            raise ValueError(f"words {words!r}, expected a list of words")
        return tagging_files.Sentence(tuple(words), ("",) * len(words))

    description = read_config(model.path)
    names, majority = description.get("id2label"), description.get(tagging.MAJORITY)
    if not isinstance(names, dict) or majority not in names.values() or {*names} != {*map(str, range(len(names)))}:
        raise ConfigError(
            f"model: {model.path / 'config.json'}: id2label: got {shown(names)}, expected a label for each number from"
            f" 0, including {tagging.MAJORITY} {shown(majority)}; copy the model again"
        )
    sentences = tagging.tokenize_sentences(parse_lines(name, text, parse), {}, model.tokenizer, run.settings.max_length)
    job = tagging.TaggingJob(
        task=tagging_files.TASKS[run.task],
        pad_id=model.tokenizer.pad_token_id,
        classes=tuple(str(names[str(number)]) for number in range(len(names))),
        majority=str(majority),
        words_per_feature=1.0,
        dev=sentences,
    )
    for sentence, labels in zip(sentences.sentences, job.label(sentences, *load(model, job)), strict=True):
        yield {"words": sentence.words, "labels": labels}


def answer(model: ModelFolder, run: RunIdentity, name: str, text: str) -> Iterator[dict[str, Any]]:
    """Yields the answer to each question."""
    assert isinstance(run.settings, SquadConfig)

    def parse(given: Given) -> dict[str, Any]:
        if isinstance(given, dict) and all(isinstance(given.get(key), str) for key in ("question", "context")):
            return given
        raise ValueError("expected a JSON object with the texts question and context, or a file in SQuAD's format")

    if not (is_object(text) and "data" in json.loads(text)):
        paragraphs = [
            {"context": row["context"], "qas": [{"id": str(row.get("id", number)), "question": row["question"]}]}
            for number, row in enumerate(parse_lines(name, text, parse), 1)
        ]
        text = json.dumps({"data": [{"paragraphs": paragraphs}]})
    file = squad_files.parse_squad(text.encode(), f"input: {name}", labeled=False)
    windows = make_windows(file, model.tokenizer, run.settings, training=False)
    job = squad.SquadJob(
        task=squad_files.TASKS[run.task],
        settings=run.settings,
        pad_id=model.tokenizer.pad_token_id,
        dev_file=file,
        dev=windows,
    )
    candidates, no_answer = job.answer(file, windows, *load(model, job))
    final = job.answer_files(candidates, no_answer)["predictions.json"]
    for question in file.questions:
        best = candidates[question.id][0]["probability"] if candidates[question.id] else 0.0
        yield {"id": question.id, "answer": final[question.id], "score": best, "no_answer": no_answer[question.id]}
