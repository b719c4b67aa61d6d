"""Counts the tensors [masked positions, vocabulary] that forward and backward create, hold at once, and keep.

These are the largest tensors of a step: 143 MiB each for base with 16 sequences of 512.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretrain.data.batches import Batch
from pretrain.model.distribution import ENTROPY_ROWS
from tests.pretrain.conftest import new_model

VOCABULARY = 1009
COUNTS = {
    # forward: created, alive at once, kept for the backward; backward: created, alive at once
    "electra": (2, 2, 1, 1, 2),
    "hp_loss": (3, 2, 1, 1, 2),
    "hp_dist": (4, 3, 2, 2, 3),
    "mlm": (2, 2, 1, 1, 2),
}
"""Created in the forward: scores and their softmax; for HP_Loss also the head's scores, which become p_S in place, and
for HP_Dist its scores and softmax. Kept: each softmax with a gradient. Backward: its gradient, in place."""


class LargeTensors(TorchDispatchMode):
    """Watches every operation for floating point results with this number of elements."""

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


def build(name: str) -> Any:
    torch.manual_seed(0)
    return new_model(name, vocabulary=VOCABULARY)


@pytest.mark.parametrize("name", COUNTS)
def test_vocabulary_sized_tensors_are_created_and_held_no_more_often_than_needed(name: str, batch: Batch) -> None:
    model = build(name)
    with LargeTensors(batch.masked_positions_BK.numel() * VOCABULARY) as watch:
        output = model(batch)
        forward = watch.made, watch.most, len(watch.still_alive())
        watch.made, watch.most = 0, 0
        output.loss.backward()
    assert (*forward, watch.made, watch.most) == COUNTS[name]
    del output
    assert not watch.still_alive()


@pytest.mark.parametrize("name", COUNTS)
def test_asking_for_entropies_creates_and_holds_no_further_one(name: str, batch: Batch) -> None:
    times = ENTROPY_ROWS  # enough rows to be processed in parts
    large = Batch._make(part.repeat(times, 1) if isinstance(part, Tensor) else part for part in batch)
    with LargeTensors(large.masked_positions_BK.numel() * VOCABULARY) as watch:
        output = build(name)(large, entropies=True)
    assert (watch.made, watch.most, len(watch.still_alive())) == COUNTS[name][:3]
    assert output.loss.isfinite()
