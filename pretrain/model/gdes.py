"""Gradient-disentangled embedding sharing (gdes, DeBERTa-v3): the discriminator's embeddings are the generator's,
without gradient, plus a difference of their own.

Shape letters: X any leading dimensions, E embedding size.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.model import ops
from pretrain.model.encoder import Embeddings, TokenEmbeddings

DISENTANGLED = ("word_embeddings.weight", "position_embeddings.weight")
"""The tables in which `Disentangled` holds Delta."""


class DisentangledTable(nn.Embedding):
    """A table of E_D = sg(E_G) + Delta, which holds Delta, 0 at the start: ids [X] -> [X, E].

    Rows, not tables, are added: under ZeRO-3 a table exists only while its own module runs.
    """

    def __init__(self, shared: Any) -> None:
        super().__init__(shared.num_embeddings, shared.embedding_dim, _weight=torch.zeros_like(shared.weight))
        self.shared = shared

    def forward(self, input: Tensor) -> Tensor:
        with torch.no_grad():
            shared_XE: Tensor = self.shared(input)
        return shared_XE + ops.look_up(input, self.weight)


class Disentangled(TokenEmbeddings):
    """The discriminator's embeddings under gradient-disentangled sharing (DeBERTa-v3): E_D = sg(E_G) + Delta for words
    and positions, and its own parameters for the rest. `shared` is the generator's module, with E_G.
    """

    def __init__(self, shared: TokenEmbeddings) -> None:
        nn.Module.__init__(self)  # this draws no random numbers, so all other weights equal a shared instance's
        for name, part in shared.named_children():
            self.add_module(name, DisentangledTable(part) if f"{name}.weight" in DISENTANGLED else copy.deepcopy(part))
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
