"""Gradient-disentangled embedding sharing (gdes, DeBERTa-v3): the discriminator's embeddings are the generator's,
without gradient, plus a difference of their own.

Shape letters: B batch, L length, E embedding size.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pretrain.model.encoder import Embeddings, TokenEmbeddings

DISENTANGLED = ("word_embeddings.weight", "position_embeddings.weight")
"""The tables in which `Disentangled` holds Delta."""


class Disentangled(TokenEmbeddings):
    """The discriminator's embeddings under gradient-disentangled sharing (DeBERTa-v3): E_D = sg(E_G) + Delta for words
    and positions, and its own parameters for the rest.

    `shared` is the generator's module, with E_G; the tables here hold Delta, 0 at the start. Rows, not tables, are
    added: under ZeRO-3 a table exists only while its own module runs.
    """

    def __init__(self, shared: TokenEmbeddings) -> None:
        nn.Module.__init__(self)  # copying draws no random numbers, so all other weights equal a shared instance's
        for name, part in copy.deepcopy(shared).named_children():
            self.add_module(name, part)
        for name, weight in self.named_parameters():
            if name in DISENTANGLED:
                nn.init.zeros_(weight)
        self.shared = shared

    @torch.no_grad()
    def plain(self) -> TokenEmbeddings:
        """Returns the embeddings as a single ordinary module, with E_D in its tables."""
        total = copy.deepcopy(self.shared)
        for name, weight in total.named_parameters():
            own = self.get_parameter(name)
            weight.copy_(weight + own if name in DISENTANGLED else own)
        return total

    @torch.no_grad()
    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            self.get_parameter(name).copy_(weight - self.shared.get_parameter(name) if name in DISENTANGLED else weight)


class DisentangledEmbeddings(Disentangled, Embeddings):
    """`Disentangled` words and positions, with segment embeddings and LayerNorm of its own."""

    shared: Embeddings

    def forward(self, input_ids_BL: Tensor, token_type_ids_BL: Tensor) -> Tensor:
        position_L = torch.arange(input_ids_BL.shape[1], device=input_ids_BL.device)
        with torch.no_grad():
            word_BLE = self.shared.word_embeddings(input_ids_BL)
            position_LE = self.shared.position_embeddings(position_L)
        word_BLE = word_BLE + self.word_embeddings(input_ids_BL)
        position_LE = position_LE + self.position_embeddings(position_L)
        embedded_BLE = word_BLE + self.token_type_embeddings(token_type_ids_BL)
        return self.dropout(self.LayerNorm(embedded_BLE + position_LE))
