"""One sequence as words, with what happened to its masked positions marked."""

from collections.abc import Sequence

import torch

from data_prep.tokens import CONTINUATION
from pretrain.data.batches import Batch
from pretrain.method.electra import ElectraOutput
from pretrain.method.objectives.mlm import MaskedLMOutput


def example(batch: Batch, output: ElectraOutput | MaskedLMOutput, vocabulary: Sequence[str]) -> str:
    """The first sequence of a micro-batch: `[cat->dog]` where another token was drawn, or is what a masked language
    model thinks likeliest, `[cat]` where the original was, `!` after what the discriminator takes for replaced,
    wherever it stands.
    """
    if isinstance(output, ElectraOutput):
        tokens_BK, suspected_BL = output.draw.tokens_BK, output.d_BL > 0
    else:
        tokens_BK, suspected_BL = output.top_BK, torch.zeros_like(batch.attention_mask_BL)
    valid_K, visible_L = batch.masked_valid_BK[0], batch.attention_mask_BL[0]
    positions, drawn = batch.masked_positions_BK[0][valid_K].tolist(), tokens_BK[0][valid_K].tolist()
    originals, suspected = batch.input_ids_BL[0][visible_L].tolist(), suspected_BL[0].tolist()
    words = [vocabulary[token] for token in originals]
    for position, token in zip(positions, drawn, strict=True):
        other = "" if token == originals[position] else f"->{vocabulary[token]}"
        words[position] = f"[{words[position]}{other}]"
    marked = [word + "!" * suspected[position] for position, word in enumerate(words)]
    return " ".join(marked).replace(f" {CONTINUATION}", "")
