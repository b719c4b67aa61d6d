"""The folder of a fine-tuned model: its weights, tokenizer, model card and the record of its run."""

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from electra_sampler.foundation.files import new_folder, remove
from electra_sampler.foundation.markdown_table import markdown_table
from finetune.running.job import HuggingFaceModel, Job
from finetune.running.records import RunRecord, write_files
from pretrain.huggingface.folders import (
    CARD,
    TOKENIZER_FILES,
    TOKENIZER_SETTINGS,
    source_of,
    tokenizer_settings,
    written_card,
)
from pretrain.huggingface.forms import of_encoder
from pretrain.huggingface.stored import Stored, write

RESULTS = "results.json"
"""File in a model's folder: the record of its run."""


def save_finetuned(folder: Path, model: Stored, job: Job, record: RunRecord, weights: Mapping[str, Tensor]) -> None:
    """Writes a run's model with tokenizer, card and record; `folder` appears only once it is complete."""
    settings = record.run.settings
    config = dataclasses.replace(
        model.config,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.attention_dropout,
    )
    made = job.to_hugging_face({name[5:]: weight for name, weight in weights.items() if name.startswith("head.")})
    tokenizer = model.load_tokenizer()
    described = tokenizer_settings(model.tokenizer, tokenizer) | {
        "model_max_length": settings.max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],  # a ModernBERT's have no segments
    }
    special = {name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep")}
    remove(folder)  # of a run that was killed before its record was written
    with new_folder(folder) as unfinished:
        form = write(unfinished, made.architecture, config, {**of_encoder(weights), **made.head}, special, made.config)
        for name in (*TOKENIZER_FILES, "special_tokens_map.json", "added_tokens.json"):
            if (model.tokenizer / name).is_file():
                shutil.copyfile(model.tokenizer / name, unfinished / name)
        write_files(
            unfinished,
            {
                TOKENIZER_SETTINGS: json.dumps(described, indent=2) + "\n",
                RESULTS: record.model_dump_json(indent=2) + "\n",
                CARD: card(made, record, form.code),
            },
        )


def card(made: HuggingFaceModel, record: RunRecord, carried: Sequence[str]) -> str:
    """Returns the model card in Markdown; `carried` are the files of the model's code in the folder."""
    run, (name, terms) = record.run, source_of(record.model)
    scores = [
        (split, metric, f"{value:.4f}") for split, values in record.last.items() for metric, value in values.items()
    ]
    settings = [(key, str(value)) for key, value in run.settings.model_dump(mode="json").items()]
    return written_card(
        Path(__file__).with_name("model_card.jinja"),
        made=made,
        record=record,
        run=run,
        name=name,
        terms=terms,
        base_model=json.dumps([name]),
        carried=[f"`{file}`" for file in carried],
        scores="\n".join(markdown_table(("split", "metric", "score"), scores)),
        settings="\n".join(markdown_table(("", ""), settings)),
    )
