"""Conversion of settings and weights: from BERT and MPNet, whose encoders equal this project's, to ELECTRA's names, and
back to MPNet's.

MPNet is the same network where embedding and hidden size are equal: layers, relative position bias and GELU agree. It
has no segments and counts positions from 2. It takes id 1 for padding wherever it occurs, and does not count its
position.

Shape letters: P positions, H hidden size.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from data_prep.tokens import SubwordTokenizer
from pretrain.huggingface.folders import RELATIVE_MODEL_TYPE, STOCK_MODEL_TYPE

CONVERTED = ("bert", "mpnet")
"""The values of `model_type` whose models are converted."""
PADDING = 1
"""The padding id in MPNet's code, whatever the configuration says; positions start after it, as in fairseq."""
MPNET_NAMES = {
    "attention.self.query.": "attention.attn.q.",
    "attention.self.key.": "attention.attn.k.",
    "attention.self.value.": "attention.attn.v.",
    "attention.output.dense.": "attention.attn.o.",
    "attention.output.LayerNorm.": "attention.LayerNorm.",
    "generator_predictions.dense.": "lm_head.dense.",
    "generator_predictions.LayerNorm.": "lm_head.layer_norm.",
    "generator_lm_head.bias": "lm_head.bias",
}
"""Parts of ELECTRA's parameter names, each with MPNet's name for it."""
ELECTRA_NAMES = {
    "LayerNorm.gamma": "LayerNorm.weight",  # the original BERT's
    "LayerNorm.beta": "LayerNorm.bias",
    **{theirs: ours for ours, theirs in MPNET_NAMES.items()},
}
EMBEDDINGS = "electra.embeddings."


def electra_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the `config.json` of a BERT or MPNet to an equivalent ELECTRA's; leaves any other model's as it is."""
    if values.get("model_type") not in CONVERTED:
        return dict(values)
    settings = {**values, "model_type": STOCK_MODEL_TYPE, "embedding_size": values.get("hidden_size")}
    if values["model_type"] == "mpnet":
        positions = values.get("max_position_embeddings", 512)
        settings["model_type"] = RELATIVE_MODEL_TYPE
        if isinstance(positions, int):
            settings["max_position_embeddings"] = positions - PADDING - 1
    return settings


def electra_weights(weights: Mapping[str, Tensor], model_type: str) -> dict[str, Tensor]:
    """Returns the encoder's weights of a BERT or MPNet under ELECTRA's names, without pooler and heads.

    MPNet has no segment embeddings, so both segments get zeros.
    """
    own = {name.removeprefix(f"{model_type}."): weight for name, weight in weights.items()}
    found = {
        f"electra.{_renamed(name, ELECTRA_NAMES)}": weight
        for name, weight in own.items()
        if name.startswith(("embeddings.", "encoder."))
    }
    position_PH = found.get(f"{EMBEDDINGS}position_embeddings.weight")
    if model_type == "mpnet" and position_PH is not None and position_PH.dim() == 2:  # else `fill` refuses it
        found[f"{EMBEDDINGS}position_embeddings.weight"] = position_PH[PADDING + 1 :]
        found[f"{EMBEDDINGS}token_type_embeddings.weight"] = torch.zeros(2, position_PH.shape[1])
    return found


def mpnet_weights(weights: Mapping[str, Tensor], pad: int, prefix: str) -> dict[str, Tensor]:
    """Returns the weights of a model trained on one segment under MPNet's names, the encoder's with `prefix`.

    The vector of segment A is added to the positions. [PAD] and the token of id 1 exchange their ids. The discriminator
    head is left out, as MPNet has none.
    """
    found = {name: weight for name, weight in weights.items() if not name.startswith("discriminator_predictions.")}
    segments = found.pop(f"{EMBEDDINGS}token_type_embeddings.weight")
    position_PH = found[f"{EMBEDDINGS}position_embeddings.weight"] + segments[0]
    unused_H = torch.zeros_like(position_PH[: PADDING + 1])
    found[f"{EMBEDDINGS}position_embeddings.weight"] = torch.cat((unused_H, position_PH))
    for by_token in (f"{EMBEDDINGS}word_embeddings.weight", "generator_lm_head.bias"):
        if by_token in found:
            found[by_token] = found[by_token].clone()
            found[by_token][[pad, PADDING]] = found[by_token][[PADDING, pad]]
    names = {"electra.": prefix, **MPNET_NAMES}
    return {_renamed(name, names): weight.contiguous() for name, weight in found.items()}


def with_padding_at_1(tokenizer: SubwordTokenizer) -> SubwordTokenizer:
    """Returns the tokenizer with the ids of [PAD] and of the token of id 1 exchanged."""
    pad, settings = tokenizer.special.pad, json.loads(tokenizer.files()["tokenizer.json"])
    exchanged = {tokenizer.tokens[pad]: PADDING, tokenizer.tokens[PADDING]: pad}
    settings["model"]["vocab"] |= exchanged
    for token in settings["added_tokens"]:
        token["id"] = exchanged.get(token["content"], token["id"])
    settings["added_tokens"].sort(key=lambda token: token["id"])
    return SubwordTokenizer(Tokenizer.from_str(json.dumps(settings)))


def _renamed(name: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        name = name.replace(old, new)
    return name
