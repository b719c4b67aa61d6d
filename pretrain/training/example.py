"""One sequence as words, with what happened to its masked positions marked."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from data_prep.tokens import CONTINUATION
from pretrain.data.batches import Batch
from pretrain.method.electra import ElectraOutput
from pretrain.method.objectives.mlm import MaskedLMOutput


class Example(NamedTuple):
    """The first sequence of a micro-batch, still on the device.

    Shape letters: L length, K masked positions.
    """

    input_ids_L: Tensor
    attention_mask_L: Tensor
    masked_positions_K: Tensor
    masked_valid_K: Tensor
    tokens_K: Tensor
    """What stands at the masked positions: x', or what a masked language model thinks likeliest."""
    suspected_L: Tensor
    """Where the discriminator says "replaced"."""

    @classmethod
    def of(cls, batch: Batch, output: ElectraOutput | MaskedLMOutput) -> "Example":
        if isinstance(output, ElectraOutput):
            tokens_BK, suspected_BL = output.draw.tokens_BK, output.d_BL > 0
        else:
            tokens_BK, suspected_BL = output.top_BK, torch.zeros_like(batch.attention_mask_BL)
        inputs = batch.input_ids_BL, batch.attention_mask_BL, batch.masked_positions_BK, batch.masked_valid_BK
        return cls(*(part[0] for part in (*inputs, tokens_BK, suspected_BL)))

    def text(self, vocabulary: Sequence[str]) -> str:
        """`[cat->dog]` where another token was drawn, `[cat]` where the original was, `!` after what the discriminator
        takes for replaced, wherever it stands.
        """
        drawn = {
            position: token
            for position, valid, token in zip(
                *(part.tolist() for part in (self.masked_positions_K, self.masked_valid_K, self.tokens_K)), strict=True
            )
            if valid
        }
        suspected, words = self.suspected_L.tolist(), []
        for position, token in enumerate(self.input_ids_L[self.attention_mask_L].tolist()):
            word = vocabulary[token]
            if position in drawn:
                other = "" if drawn[position] == token else "->" + vocabulary[drawn[position]]
                word = f"[{word}{other}]"
            words.append(word + "!" * suspected[position])
        return " ".join(words).replace(f" {CONTINUATION}", "")
