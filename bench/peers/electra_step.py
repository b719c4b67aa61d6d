"""An ELECTRA step as usually written with Hugging Face's classes: the peer in bench/step.py.

It computes logits at every position, samples by `torch.multinomial`, uses the classes' own losses, and updates by one
fused AdamW on weights in the precision of the step.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from bench.batches import MASK, VOCABULARY
from pretrain.data.batches import Batch
from pretrain.model.config import ElectraModelConfig

LAMBDA = 50.0  # weight of the discriminator's loss in ELECTRA
LEARNING_RATE = 1e-4


def electra_step(model: ElectraModelConfig, batch: Batch, dtype: torch.dtype, compiled: bool) -> Callable[[], None]:
    """Returns a function that trains generator and discriminator, of the sizes of `model`, for one step on `batch`."""
    device = batch.input_ids_BL.device
    pair = nn.ModuleList(shared_pair(model)).to(device, dtype)
    generator, discriminator = (torch.compile(part) if compiled else part for part in pair)
    optimizer = torch.optim.AdamW(pair.parameters(), lr=LEARNING_RATE, eps=1e-6, fused=True)
    masked_BL = torch.zeros_like(batch.attention_mask_BL).scatter(1, batch.masked_positions_BK, True)
    inputs = {"attention_mask": batch.attention_mask_BL.long(), "token_type_ids": batch.token_type_ids_BL}

    def step() -> None:
        ids_BL = batch.input_ids_BL
        labels_BL = ids_BL.where(masked_BL, -100)
        mlm = generator(input_ids=ids_BL.masked_fill(masked_BL, MASK), labels=labels_BL, **inputs)
        with torch.no_grad():
            sampled = torch.multinomial(mlm.logits[masked_BL].float().softmax(-1), 1).squeeze(-1)
        replaced_BL = ids_BL.masked_scatter(masked_BL, sampled)
        detected = discriminator(input_ids=replaced_BL, labels=(replaced_BL != ids_BL).long(), **inputs)
        (mlm.loss + LAMBDA * detected.loss).backward()
        nn.utils.clip_grad_norm_(pair.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def shared_pair(model: ElectraModelConfig) -> tuple[ElectraForMaskedLM, ElectraForPreTraining]:
    """Returns generator and discriminator with shared embeddings; Hugging Face's classes lack relative positions."""
    pair = []
    for encoder, wanted in (
        (model.generator(VOCABULARY), ElectraForMaskedLM),
        (model.discriminator(VOCABULARY), ElectraForPreTraining),
    ):
        fields = {name: value for name, value in vars(encoder).items() if not name.startswith("relative")}
        pair.append(wanted(ElectraConfig(**fields)))
    generator, discriminator = pair
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()
    return generator, discriminator
