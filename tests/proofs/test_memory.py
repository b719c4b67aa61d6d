"""How many tensors of [masked positions, vocabulary] a forward makes, holds at once and keeps for the backward.

They are the largest of a step: 143 MiB each at base with 16 sequences of 512.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretrain.config import ObjectiveConfig
from pretrain.data import Batch
from pretrain.electra import Electra
from pretrain.masked_lm import MaskedLM
from tests.pretrain.conftest import MASK, SMALL_MODEL

VOCABULARY = 1009
COUNTS = {  # made, alive at once, kept for the backward
    "electra": (4, 2, 1),
    "hp_loss": (7, 3, 1),
    "hp_dist": (7, 3, 2),
    "mlm": (3, 2, 1),
}


class LargeTensors(TorchDispatchMode):
    """Watches every operation for results of one number of floating point elements."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements, self.made, self.most = elements, 0, 0
        self.alive: list[StorageWeakRef] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel() == self.elements:
                storage = StorageWeakRef(tensor.untyped_storage())
                if all(storage.cdata != known.cdata for known in self.still_alive()):
                    self.made += 1
                    self.alive.append(storage)
        self.most = max(self.most, len(self.still_alive()))
        return result

    def still_alive(self) -> list[StorageWeakRef]:
        self.alive = [storage for storage in self.alive if not storage.expired()]
        return self.alive


@pytest.mark.parametrize("name", COUNTS)
def test_vocabulary_sized_tensors_are_made_and_held_no_oftener_than_needed(name: str, batch: Batch) -> None:
    torch.manual_seed(0)
    kind = MaskedLM if name == "mlm" else Electra
    model = kind(SMALL_MODEL, ObjectiveConfig.from_values({"name": name}), VOCABULARY, MASK)
    with LargeTensors(batch.masked_positions_BK.numel() * VOCABULARY) as watch:
        output = model(batch)
    assert (watch.made, watch.most, len(watch.still_alive())) == COUNTS[name]
    output.loss.backward()
    del output
    assert not watch.still_alive()
