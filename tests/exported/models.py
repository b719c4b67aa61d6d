"""Tiny models of every class that an export offers, and inputs for them; torch and transformers are all they need."""

from typing import Any

import torch
from torch import Tensor

from pretrain.huggingface import modeling_electra_sampler as code

TINY = {
    "vocab_size": 30,
    "embedding_size": 12,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
LENGTH = 11
HEADS = (
    *("Model", "ForPreTraining", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    *("ForQuestionAnswering", "ForMultipleChoice"),
)
FEW = ("Model", "ForMaskedLM", "ForMultipleChoice")
"""The encoder, a head whose matrix is tied to it, and one that folds its inputs; all heads are Hugging Face's own."""


def new_model(head: str, **settings: Any) -> Any:
    """A fresh model in evaluation mode, always the same one."""
    torch.manual_seed(0)
    return getattr(code, f"ElectraSampler{head}")(code.ElectraSamplerConfig(**TINY | settings)).eval()


def inputs(head: str) -> dict[str, Tensor]:
    """Three sequences of 11, 8 and 5 tokens in two segments, or pairs of such."""
    generator = torch.Generator().manual_seed(0)
    shape = (3, 2, LENGTH) if head == "ForMultipleChoice" else (3, LENGTH)
    lengths = torch.tensor([11, 8, 5]).view(-1, *[1] * (len(shape) - 1))
    return {
        "input_ids": torch.randint(30, shape, generator=generator),
        "attention_mask": (torch.arange(LENGTH) < lengths).expand(shape).long(),
        "token_type_ids": (torch.arange(LENGTH) > 3).expand(shape).long(),
    }


def labels(head: str) -> dict[str, Tensor]:
    """Labels for the loss of a head; none for the encoder."""
    per_token, per_sequence = torch.arange(3 * LENGTH).view(3, LENGTH) % 2, torch.tensor([0, 1, 1])
    return {
        "Model": {},
        "ForPreTraining": {"labels": per_token},
        "ForMaskedLM": {"labels": per_token * 7},
        "ForSequenceClassification": {"labels": per_sequence},
        "ForTokenClassification": {"labels": per_token},
        "ForQuestionAnswering": {"start_positions": torch.tensor([1, 2, LENGTH]), "end_positions": per_sequence + 2},
        "ForMultipleChoice": {"labels": per_sequence},
    }[head]


def loss(model: Any, head: str) -> Tensor:
    """The loss of a head; of the encoder, the mean of its squared states."""
    output = model(**inputs(head), **labels(head))
    return output.loss if "loss" in output else output.last_hidden_state.square().mean()
