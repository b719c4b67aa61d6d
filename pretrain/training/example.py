"""Decodes one training sequence to text, marking replacements and the discriminator's detections."""

from collections.abc import Sequence

import torch

from data_prep.tokens import CONTINUATION
from pretrain.data.batches import Batch
from pretrain.method.objective import ElectraOutput, Output


def example(batch: Batch, output: Output, vocabulary: Sequence[str]) -> str:
    """Returns the first sequence of a micro-batch as text.

    `[cat->dog]` marks a masked position where another token was drawn, `[cat]` one where the original was drawn; for a
    masked language model the drawn token is its most likely one. `!` follows each token, masked or not, that the
    discriminator takes for replaced.
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
