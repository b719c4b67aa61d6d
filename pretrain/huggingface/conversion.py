"""Settings and weights of BERT and MPNet, whose encoder is this project's, under ELECTRA's names, and the way back to
MPNet's.

MPNet is the same network where embedding and hidden size are equal: layers, relative position bias and GELU agree. It
has no segments and counts positions from 2. Wherever id 1 occurs it skips a position, as padding.

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
"""Values of `model_type`."""
PADDING = 1
"""The id of padding in MPNet's code, which ignores the configuration; positions start after it (fairseq's padding)."""
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
"""Parameter names of ELECTRA, and MPNet's."""
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
    """The encoder's weights of a BERT or MPNet under ELECTRA's names, without pooler and heads.

    MPNet has no segment embeddings: both of ELECTRA's are zero.
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
    """The weights of a model of one segment under MPNet's names, `prefix` before the encoder's.

    The vector of segment A is added to the positions. [PAD] and the token of id 1 exchange their ids. MPNet has no
    discriminator head.
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
    """The tokenizer in which [PAD] and the token of id 1 have exchanged their ids."""
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
