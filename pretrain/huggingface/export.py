"""A trained model written as Hugging Face folders, in the form of its encoder. A folder is complete or absent."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from data_prep.tokens import SubwordTokenizer
from electra_sampler.foundation.files import new_folder
from pretrain.huggingface.forms import DISCRIMINATOR
from pretrain.huggingface.stored import SAMPLING, SAMPLING_HEAD, Sampling, save_weights, write
from pretrain.method.hardness_prediction import HPDist, HPLoss
from pretrain.method.objective import Objective, ObjectiveConfig
from pretrain.method.registry import BUILT_IN

TOKENIZER_SETTINGS = "tokenizer_config.json"


def export(model: Objective, tokenizer: Path, card: str, out: Path, mask_share: float) -> None:
    """Writes an exported model with tokenizer and model card to the folder `out`."""
    subwords = SubwordTokenizer.load(tokenizer)
    special = subwords.special.model_dump()
    with new_folder(out) as unfinished:
        for folder, (architecture, *_) in model.exports.items():
            modules = model.exported(folder)  # of a generator the output matrix is its word embeddings
            config: Any = modules["electra"].config
            weights, record = modules.state_dict(), {}
            if architecture == DISCRIMINATOR:
                record = {SAMPLING: sampling_of(model.objective, mask_share).model_dump()}
            form = write(unfinished / folder, architecture, config, weights, special, record)
            if folder == "generator" and isinstance(model, HPLoss | HPDist) and model.objective.name in BUILT_IN:
                head = {"generator_predictions": model.sampler_transform, "generator_lm_head": model.sampler_scores}
                weights = nn.ModuleDict({"electra": modules["electra"], **head}).state_dict()
                weights.setdefault("generator_lm_head.bias", torch.zeros(config.vocab_size))
                encoder = form.theirs(modules["electra"].state_dict(prefix="electra."), config)
                stock = form.theirs(weights, config).items()
                own = {name: weight for name, weight in stock if name not in encoder}
                save_weights(own, unfinished / folder / SAMPLING_HEAD)
            settings: dict[str, Any] = {"model_max_length": config.max_position_embeddings}
            settings |= {"model_input_names": form.inputs} if form.inputs else {}
            save_tokenizer(subwords, unfinished / folder, settings)
        (unfinished / "README.md").write_text(card)


def sampling_of(objective: ObjectiveConfig, mask_share: float) -> Sampling:
    """Returns how an objective draws replacements, for which this share of the word pieces is masked."""
    drawn = objective.model_dump(include=set(Sampling.model_fields))
    return Sampling(objective=objective.name, mask_share=mask_share, **drawn)


def save_tokenizer(tokenizer: SubwordTokenizer, folder: Path, settings: dict[str, Any]) -> None:
    """Writes the tokenizer anew, with these settings, rather than copy the files of the run's tokenizer folder."""
    files = tokenizer.files()
    files[TOKENIZER_SETTINGS] = json.dumps(json.loads(files[TOKENIZER_SETTINGS]) | settings, indent=2).encode()
    for name, content in files.items():
        (folder / name).write_bytes(content)
