"""Conversion of settings and weights from BERT and MPNet, whose encoders equal this project's, to ELECTRA's names.

MPNet is the same network where embedding and hidden size are equal: layers, relative position bias and GELU agree. It
has no segments and counts positions from 2.

Shape letters: P positions, H hidden size.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pretrain.huggingface.folders import RELATIVE_MODEL_TYPE, STOCK_MODEL_TYPE

CONVERTED = ("bert", "mpnet")
"""The values of `model_type` whose models are converted."""
PADDING = 1
"""The padding id in MPNet's code, whatever the configuration says; positions start after it, as in fairseq."""
ELECTRA_NAMES = {
    "LayerNorm.gamma": "LayerNorm.weight",  # the original BERT's
    "LayerNorm.beta": "LayerNorm.bias",
    "attention.attn.q.": "attention.self.query.",  # MPNet's
    "attention.attn.k.": "attention.self.key.",
    "attention.attn.v.": "attention.self.value.",
    "attention.attn.o.": "attention.output.dense.",
    "attention.LayerNorm.": "attention.output.LayerNorm.",
}
"""Parts of BERT's and MPNet's parameter names, each with ELECTRA's name for it."""
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
    found = {}
    for name, weight in own.items():
        if name.startswith(("embeddings.", "encoder.")):
            for theirs, ours in ELECTRA_NAMES.items():
                name = name.replace(theirs, ours)
            found[f"electra.{name}"] = weight
    position_PH = found.get(f"{EMBEDDINGS}position_embeddings.weight")
    if model_type == "mpnet" and position_PH is not None and position_PH.dim() == 2:  # else `fill` refuses it
        found[f"{EMBEDDINGS}position_embeddings.weight"] = position_PH[PADDING + 1 :]
        found[f"{EMBEDDINGS}token_type_embeddings.weight"] = torch.zeros(2, position_PH.shape[1])
    return found
