"""Converts settings and weights of BERT and MPNet, whose encoder is this project's, to ELECTRA's names."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pretrain.huggingface.folders import RELATIVE_MODEL_TYPE, STOCK_MODEL_TYPE

CONVERTED = ("bert", "mpnet")
"""Values of `model_type`."""
NAMES = {
    "LayerNorm.gamma": "LayerNorm.weight",  # the original BERT's
    "LayerNorm.beta": "LayerNorm.bias",
    "attention.attn.q.": "attention.self.query.",  # from here on MPNet's
    "attention.attn.k.": "attention.self.key.",
    "attention.attn.v.": "attention.self.value.",
    "attention.attn.o.": "attention.output.dense.",
    "attention.LayerNorm.": "attention.output.LayerNorm.",
}
UNUSED_POSITIONS = 2
"""MPNet counts positions from 2; the rows before are never read (fairseq's padding)."""


def electra_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the `config.json` of a BERT or MPNet to an equivalent ELECTRA's; leaves any other model's as it is."""
    if values.get("model_type") not in CONVERTED:
        return dict(values)
    settings = {**values, "model_type": STOCK_MODEL_TYPE, "embedding_size": values.get("hidden_size")}
    if values["model_type"] == "mpnet":
        positions = values.get("max_position_embeddings", 512)
        settings["model_type"] = RELATIVE_MODEL_TYPE
        if isinstance(positions, int):
            settings["max_position_embeddings"] = positions - UNUSED_POSITIONS
    return settings


def electra_weights(weights: Mapping[str, Tensor], model_type: str) -> dict[str, Tensor]:
    """The encoder's weights of a BERT or MPNet under ELECTRA's names, without pooler and heads.

    MPNet has no segments: both start at 0.
    """
    own = {name.removeprefix(f"{model_type}."): weight for name, weight in weights.items()}
    renamed = {}
    for name, weight in own.items():
        if name.startswith(("embeddings.", "encoder.")):
            for theirs, ours in NAMES.items():
                name = name.replace(theirs, ours)
            renamed[f"electra.{name}"] = weight
    positions = "electra.embeddings.position_embeddings.weight"
    if model_type == "mpnet" and positions in renamed and renamed[positions].dim() == 2:  # else `fill` refuses it
        renamed[positions] = renamed[positions][UNUSED_POSITIONS:]
        renamed["electra.embeddings.token_type_embeddings.weight"] = torch.zeros(2, renamed[positions].shape[1])
    return renamed
