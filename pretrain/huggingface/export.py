"""A trained model written as Hugging Face folders: ELECTRA's, or a stock MPNet, which `AutoModel`, pipelines and
sentence-transformers load without our code. A folder is complete or absent.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from data_prep.tokens import SubwordTokenizer
from foundation.config import ConfigError
from foundation.files import new_folder
from pretrain.huggingface.conversion import PADDING, mpnet_weights, with_padding_at_1
from pretrain.huggingface.folders import save_folder
from pretrain.huggingface.modernbert import save_modernbert
from pretrain.method.objective import Objective
from pretrain.model.config import ElectraModelConfig, ModelConfig
from pretrain.model.modern import ModernConfig

TOKENIZER_SETTINGS = "tokenizer_config.json"


def export(model: Objective, pad_token_id: int, tokenizer: Path, card: str, out: Path) -> None:
    """Writes an exported model with tokenizer and model card to the folder `out`."""
    subwords = SubwordTokenizer.load(tokenizer)
    with new_folder(out) as unfinished:
        for folder, (architecture, *_) in model.exports.items():
            modules = model.exported(folder)  # of a generator the output matrix is its word embeddings
            encoder: Any = modules["electra"]
            weights = modules.state_dict()
            settings: dict[str, Any] = {"model_max_length": encoder.config.max_position_embeddings}
            if isinstance(encoder.config, ModernConfig):
                settings["model_input_names"] = ["input_ids", "attention_mask"]
                save_modernbert(unfinished / folder, architecture, encoder.config, weights, subwords.special)
            else:
                save_folder(unfinished / folder, architecture, encoder.config, weights, pad_token_id)
            save_tokenizer(subwords, unfinished / folder, settings)
        (unfinished / "README.md").write_text(card)


def save_tokenizer(tokenizer: SubwordTokenizer, folder: Path, settings: dict[str, Any]) -> None:
    """Writes the tokenizer anew, with these settings, rather than copy the files of the run's tokenizer folder."""
    files = tokenizer.files()
    files[TOKENIZER_SETTINGS] = json.dumps(json.loads(files[TOKENIZER_SETTINGS]) | settings, indent=2).encode()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def require_mpnet(run: Path, model: ModelConfig, one_segment: bool) -> None:
    """Checks that MPNet can compute the model of a run.

    Raises:
        ConfigError: lists every reason why it cannot.
    """
    problems = []
    if not (isinstance(model, ElectraModelConfig) and model.relative_position):
        problems.append(
            f"format: got mpnet, but {run} has no relative positions; leave --format out: the export is a stock model"
        )
    if model.embedding_size != model.hidden_size:
        problems.append(
            f"format: got mpnet, which needs embedding_size equal to hidden_size, but {run} has"
            f" {model.embedding_size} and {model.hidden_size}; leave --format out, or pre-train with equal sizes, as"
            " the presets tiny and base"
        )
    if not one_segment:
        problems.append(
            f"format: got mpnet, which has no second segment, but {run} was trained with one; leave --format out, or"
            " pre-train on shards built with --one_segment"
        )
    if problems:
        raise ConfigError(*problems)


def export_mpnet(model: Objective, tokenizer: Path, card: str, out: Path) -> None:
    """Writes the discriminator's encoder as `MPNetModel`, or a masked language model as `MPNetForMaskedLM`."""
    modules = model.exported(".")
    config: Any = modules["electra"].config
    subwords = SubwordTokenizer.load(tokenizer)
    predicts = "generator_lm_head" in modules
    description = {
        "architectures": ["MPNetForMaskedLM" if predicts else "MPNetModel"],
        "model_type": "mpnet",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "max_position_embeddings": config.max_position_embeddings + PADDING + 1,
        "initializer_range": config.initializer_range,
        "layer_norm_eps": config.layer_norm_eps,
        "relative_attention_num_buckets": config.relative_attention_num_buckets,
        "pad_token_id": PADDING,
        "bos_token_id": subwords.special.cls,
        "eos_token_id": subwords.special.sep,
        "tie_word_embeddings": True,
    }
    settings = {
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": config.max_position_embeddings,
    }
    weights = mpnet_weights(modules.state_dict(), subwords.special.pad, "mpnet." if predicts else "")
    with new_folder(out) as unfinished:
        (unfinished / "config.json").write_text(json.dumps(description, indent=2) + "\n")
        save_file(weights, unfinished / "model.safetensors", {"format": "pt"})
        save_tokenizer(with_padding_at_1(subwords), unfinished, settings)
        (unfinished / "README.md").write_text(card)
