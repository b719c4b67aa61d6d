"""A trained model written as Hugging Face folders, ELECTRA's or ModernBERT's. A folder is complete or absent."""

import json
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import nn

from data_prep.tokens import SubwordTokenizer
from foundation.config import StrictConfig
from foundation.files import new_folder
from pretrain.huggingface.folders import save_folder
from pretrain.huggingface.modernbert import folded, save_modernbert
from pretrain.method.hardness_prediction import HPDist, HPLoss, SamplingHead
from pretrain.method.objective import Objective
from pretrain.method.registry import BUILT_IN
from pretrain.model.encoder import Encoder
from pretrain.model.modern import ModernConfig

TOKENIZER_SETTINGS = "tokenizer_config.json"
SAMPLING = "replacement_sampling"
"""Key of `Sampling` in a discriminator's `config.json`."""
SAMPLING_HEAD = "sampling_head.safetensors"
"""The sampling head, beside the generator's weights: under the names of the generator's own head, in whose place it
computes z of HP_Loss, or HP_Dist's scores.
"""


class Sampling(StrictConfig):
    """How the replacements were drawn that a discriminator was trained on, as an export records it."""

    objective: str
    mask_share: float = Field(gt=0, le=1)
    """Share of the word pieces that were masked, and not kept for the generator to see."""
    temperature: float = Field(default=1.0, gt=0)
    forbid_original: bool = False
    mixture: float = Field(default=0.0, ge=0, lt=1)
    importance_weighting: bool = False


def export(model: Objective, pad_token_id: int, tokenizer: Path, card: str, out: Path, mask_share: float) -> None:
    """Writes an exported model with tokenizer and model card to the folder `out`."""
    drawn = model.objective.model_dump(include=set(Sampling.model_fields))
    sampling = Sampling(objective=model.objective.name, mask_share=mask_share, **drawn)
    subwords = SubwordTokenizer.load(tokenizer)
    with new_folder(out) as unfinished:
        for folder, (architecture, *_) in model.exports.items():
            modules = model.exported(folder)  # of a generator the output matrix is its word embeddings
            encoder: Any = modules["electra"]
            weights = modules.state_dict()
            settings: dict[str, Any] = {"model_max_length": encoder.config.max_position_embeddings}
            record = {SAMPLING: sampling.model_dump()} if architecture == "ElectraForPreTraining" else {}
            if isinstance(encoder.config, ModernConfig):
                settings["model_input_names"] = ["input_ids", "attention_mask"]
                save_modernbert(unfinished / folder, architecture, encoder.config, weights, subwords.special, record)
            else:
                save_folder(unfinished / folder, architecture, encoder.config, weights, pad_token_id, record)
            if folder == "generator" and isinstance(model, HPLoss | HPDist) and model.objective.name in BUILT_IN:
                save_sampling_head(unfinished / folder, model, encoder)
            save_tokenizer(subwords, unfinished / folder, settings)
        (unfinished / "README.md").write_text(card)


def save_sampling_head(folder: Path, model: SamplingHead, generator: Encoder) -> None:
    """Writes the sampling head beside the generator's weights, with a bias of 0 if it has none."""
    modules = {"generator_predictions": model.sampler_transform, "generator_lm_head": model.sampler_scores}
    weights = nn.ModuleDict({"electra": generator, **modules}).state_dict()
    weights.setdefault("generator_lm_head.bias", torch.zeros(generator.config.vocab_size))
    named = folded(weights) if isinstance(generator.config, ModernConfig) else weights
    head = {name: weight.contiguous() for name, weight in named.items() if not name.startswith(("electra.", "model."))}
    save_file(head, folder / SAMPLING_HEAD, {"format": "pt"})


def save_tokenizer(tokenizer: SubwordTokenizer, folder: Path, settings: dict[str, Any]) -> None:
    """Writes the tokenizer anew, with these settings, rather than copy the files of the run's tokenizer folder."""
    files = tokenizer.files()
    files[TOKENIZER_SETTINGS] = json.dumps(json.loads(files[TOKENIZER_SETTINGS]) | settings, indent=2).encode()
    for name, content in files.items():
        (folder / name).write_bytes(content)
