"""An ELECTRA step as usually written with Hugging Face's classes, ELECTRA's or ModernBERT's: the peer in bench/step.py.

It computes logits at every position, samples by `torch.multinomial`, and updates by one fused AdamW on weights in the
precision of the step.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from transformers import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForTokenClassification,
    PreTrainedModel,
)

from bench.batches import MASK, VOCABULARY
from pretrain.data.batches import Batch
from pretrain.model.config import ModelConfig, ModernModelConfig

LAMBDA = 50.0  # weight of the discriminator's loss in ELECTRA
LEARNING_RATE = 1e-4


def electra_step(model: ModelConfig, batch: Batch, dtype: torch.dtype, compiled: bool) -> Callable[[], None]:
    """Returns a function that trains generator and discriminator, of the sizes of `model`, for one step on `batch`."""
    device = batch.input_ids_BL.device
    models = modern_pair(model) if isinstance(model, ModernModelConfig) else shared_pair(model)
    pair = nn.ModuleList(models).to(device, dtype)
    generator, discriminator = (torch.compile(part) if compiled else part for part in pair)
    optimizer = torch.optim.AdamW(pair.parameters(), lr=LEARNING_RATE, eps=1e-6, fused=True)
    masked_BL = torch.zeros_like(batch.attention_mask_BL).scatter(1, batch.masked_positions_BK, True)
    visible_BL = batch.attention_mask_BL.long()

    def step() -> None:
        ids_BL = batch.input_ids_BL
        labels_BL = ids_BL.where(masked_BL, -100)
        mlm = generator(input_ids=ids_BL.masked_fill(masked_BL, MASK), labels=labels_BL, attention_mask=visible_BL)
        with torch.no_grad():
            sampled = torch.multinomial(mlm.logits[masked_BL].float().softmax(-1), 1).squeeze(-1)
        replaced_BL = ids_BL.masked_scatter(masked_BL, sampled)
        scores_BL = discriminator(input_ids=replaced_BL, attention_mask=visible_BL).logits.view_as(ids_BL)
        detection = F.binary_cross_entropy_with_logits(scores_BL, (replaced_BL != ids_BL).to(scores_BL))
        (mlm.loss + LAMBDA * detection).backward()
        nn.utils.clip_grad_norm_(pair.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def shared_pair(model: ModelConfig) -> tuple[ElectraForMaskedLM, ElectraForPreTraining]:
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


def modern_pair(model: ModernModelConfig) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Returns generator and discriminator; Hugging Face's ModernBERT cannot share embeddings of another width."""
    shared = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    generator, discriminator = (
        ModernBertConfig(
            local_attention=model.window,
            global_attn_every_n_layers=model.global_every,
            num_labels=1,
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
            **{name: getattr(sizes, name) for name in shared},
        )
        for sizes in (model.generator(VOCABULARY), model.discriminator(VOCABULARY))
    )
    return ModernBertForMaskedLM(generator), ModernBertForTokenClassification(discriminator)
