"""Models as folders: the one to fine-tune, identified by its content, and fine-tuned ones in OUTPUT/finetuned/RUN.

A finished run leaves its model in OUTPUT/candidates. When all seeds of its setting are done, the models that `--keep`
names move to OUTPUT/finetuned, and the others are removed. A folder under its final name is complete, and no folder in
OUTPUT/finetuned is ever removed.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from electra_sampler.foundation.config import ConfigError, explained
from electra_sampler.foundation.files import file_sha256, new_folder, remove
from electra_sampler.foundation.locks import holder
from electra_sampler.foundation.markdown_table import markdown_table
from finetune.running.job import HuggingFaceModel, Job
from finetune.running.records import FILE_NAME, RunIdentity, RunRecord, Task, read_records, task_prefix
from pretrain.huggingface.export import TOKENIZER_SETTINGS
from pretrain.huggingface.folders import AGAIN, CARD, read_config, source_of
from pretrain.huggingface.stored import read_stored, require_readable, write
from pretrain.model.sizes import EncoderSizes

CANDIDATES, FINETUNED, LOCKS = "candidates", "finetuned", "locks"
RESULTS = "results.json"
"""File in a model's folder: the record of its run."""
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """A model to fine-tune: a local folder, found or downloaded."""

    path: Path
    sha256: str
    """Digest of the names and contents of its files."""
    config: EncoderSizes
    tokenizer: Any


def open_model(name: str) -> ModelFolder:
    """Opens an exported folder, or a stock Hugging Face ELECTRA by folder or hub name; reads no weights yet.

    Raises:
        ConfigError: there is no such model, it is no ELECTRA, or its tokenizer is missing or does not fit.
    """
    stored = read_stored(name)
    path, tokenizer = stored.folder, load_tokenizer(stored.tokenizer, stored.config.vocab_size)
    own = path == Path(name)  # the hub's card is no part of the model, and may be absent from its cache
    files = sorted(entry for entry in path.iterdir() if entry.is_file() and (own or entry.name != CARD))
    names_and_contents = b"".join(file.name.encode() + bytes.fromhex(file_sha256(file)) for file in files)
    return ModelFolder(path, hashlib.sha256(names_and_contents).hexdigest(), stored.config, tokenizer)


def read_tokenizer_settings(path: Path) -> dict[str, Any]:
    """Returns the settings in a folder's `tokenizer_config.json`; empty if there is no such file."""
    return read_config(path, TOKENIZER_SETTINGS) if (path / TOKENIZER_SETTINGS).is_file() else {}


def load_tokenizer(path: Path, ids: int | None = None) -> Any:
    """Loads the tokenizer in a folder; unlike `AutoTokenizer`, never asks to run code from the folder.

    Raises:
        ConfigError: there is no tokenizer, it cannot be used, or it has more pieces than the model has `ids`.
    """
    from transformers import ElectraTokenizerFast, PreTrainedTokenizerFast

    if not any((path / name).is_file() for name in TOKENIZER_FILES):  # transformers would make up an empty one
        raise ConfigError(
            f"model: {path} has no tokenizer; save one there, expected one of {', '.join(TOKENIZER_FILES)} in it"
        )
    kind = read_tokenizer_settings(path).get("tokenizer_class")
    as_it_is = kind in ("PreTrainedTokenizerFast", PreTrainedTokenizerFast.__name__)  # versions rename it
    with explained(f"model: {path} has a tokenizer that cannot be used", AGAIN):
        tokenizer = (PreTrainedTokenizerFast if as_it_is else ElectraTokenizerFast).from_pretrained(path)
        require_readable(path)
        tokenizer(["\u2603", "a snowman"], padding=True)  # needs [UNK] and [PAD]
    pieces = max(tokenizer.get_vocab().values()) + 1
    if ids is not None and pieces > ids:
        raise ConfigError(f"model: tokenizer in {path} has {pieces} pieces, expected at most {ids}; {AGAIN}")
    return tokenizer


def save_finetuned(
    folder: Path, model: ModelFolder, job: Job, record: RunRecord, weights: Mapping[str, Tensor]
) -> None:
    """Writes a run's model with tokenizer, card and record; `folder` appears only once it is complete."""
    settings = record.run.settings
    config = dataclasses.replace(
        model.config,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.attention_dropout,
    )
    encoder = {name: weight for name, weight in weights.items() if name.startswith("electra.")}
    made = job.to_hugging_face({name[5:]: weight for name, weight in weights.items() if name.startswith("head.")})
    described = {**read_tokenizer_settings(model.path), "model_max_length": settings.max_length}
    special = {name: getattr(model.tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep")}
    if "model_input_names" in described:  # a ModernBERT's have no segments, which the head of SQuAD needs
        described["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    remove(folder)  # of a run that was killed before its record was written
    with new_folder(folder) as unfinished:
        form = write(unfinished, made.architecture, config, {**encoder, **made.head}, special, made.config)
        for name in (*TOKENIZER_FILES, "special_tokens_map.json", "added_tokens.json"):
            if (model.path / name).is_file():
                shutil.copyfile(model.path / name, unfinished / name)
        texts = {
            TOKENIZER_SETTINGS: json.dumps(described, indent=2) + "\n",
            RESULTS: record.model_dump_json(indent=2) + "\n",
            CARD: card(made, record, form.code),
        }
        for name, text in texts.items():
            (unfinished / name).write_text(text, "utf-8")


def card(made: HuggingFaceModel, record: RunRecord, carried: Sequence[str]) -> str:
    """Returns the model card in Markdown; `carried` are the files of the model's code in the folder."""
    run, (name, terms) = record.run, source_of(record.model)
    base = "" if run.random_weights else f"base_model: {json.dumps([name])}\n"
    code = ", trust_remote_code=True" if carried else ""
    scores = [
        (split, metric, f"{value:.4f}") for split, values in record.last.items() for metric, value in values.items()
    ]
    settings = [(key, str(value)) for key, value in run.settings.model_dump(mode="json").items()]
    files = " and ".join(f"`{name}`" for name in carried)
    carries = f"\nThe model's code is {files} in this folder; `trust_remote_code=True` allows it to run.\n"
    return f"""---
library_name: transformers
pipeline_tag: {made.pipeline}
{base}tags:
- electra
---

# {run.task}, fine-tuned from {"untrained weights of the shape of " if run.random_weights else ""}`{name}`{terms}

```python
{made.example.replace("{code}", code)}
```
{carries if carried else ""}
## Scores

Seed {run.seed}, {record.train_examples:,} training examples, after the last epoch.

{chr(10).join(markdown_table(("split", "metric", "score"), scores))}

## Settings

{chr(10).join(markdown_table(("", ""), settings))}
"""


def choose(keep: str, records: Sequence[RunRecord], task: Task) -> list[RunRecord]:
    """Returns the records whose models are kept, among the records of one setting.

    They are ranked by the task's first metric on its first dev split after the last epoch; of equal scores, the higher
    seed ranks lower. The median of an even number is the lower of the middle two.
    """
    split, metric = task.dev_splits[0], task.metrics[0]
    ranked = sorted(records, key=lambda record: (record.last[split][metric], -record.run.seed))
    middle = (len(ranked) - 1) // 2
    return {"all": ranked, "best": ranked[-1:], "median": ranked[middle : middle + 1], "none": []}[keep]


def keep_models(output: Path, keep: str, runs: Sequence[RunIdentity], tasks: Mapping[str, Task]) -> Iterator[str]:
    """For each setting of `runs` whose seeds are all done, keeps the chosen models and removes the others.

    Skips a setting while another process works on its task, since that launch may add seeds. Yields a line for each
    model that is kept, or that should be kept but is missing.
    """
    done = {record.run: record for record in read_records(output / FILE_NAME)}
    for setting in dict.fromkeys(map(without_seed, runs)):
        task = tasks[setting.task]
        waits = any(run not in done for run in runs if without_seed(run) == setting)
        if waits or any(map(holder, (output / LOCKS).glob(f"{task_prefix(setting.task)}*"))):
            continue
        records = [record for run, record in done.items() if without_seed(run) == setting]
        for record in choose(keep, records, task):
            name, score = record.run.folder_name(), record.last[task.dev_splits[0]][task.metrics[0]]
            candidate, kept = output / CANDIDATES / name, output / FINETUNED / name
            which = f"{task.name} seed {record.run.seed} ({keep} of {len(records)}, {task.metrics[0]} {score:.4f})"
            if candidate.is_dir() and not kept.exists():
                kept.parent.mkdir(exist_ok=True)
                candidate.rename(kept)
                yield f"{which}: model kept in {kept}"
            elif not kept.exists():
                yield f"{which}: no model was saved when it ran; to get one, run it again with another --output"
        for record in records:
            for folder in (output / CANDIDATES).glob(f"{record.run.folder_name()}*"):  # whole, or left by a kill
                shutil.rmtree(folder)


def without_seed(run: RunIdentity) -> RunIdentity:
    """Returns the run without its seed: what all seeds of its setting have in common."""
    return run.model_copy(update={"seed": None})
