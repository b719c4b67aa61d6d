"""Claims about the replay of micro-batches: gradients add up; on a GPU, graphs give the bits of an eager step."""

import gc
import weakref
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from bench.batches import random_batch
from pretrain.data.batches import Batch
from pretrain.engine.graphs import WARM_UPS, Replay, ReplayLoss, replay_micro_batches
from tests.pretrain.conftest import SMALL_MODEL, new_model
from tests.pretrain.huggingface.test_modernbert import MODERN


def test_gradients_add_up_although_each_replay_overwrites_the_last_ones() -> None:
    weight, x = torch.nn.Parameter(torch.tensor([2.0, 3.0])), torch.zeros(2)
    loss, incoming, gradient = torch.zeros(()), torch.zeros(()), torch.zeros(2)

    def forward() -> None:
        loss.copy_((weight.detach() * x).sum())

    def backward() -> None:
        gradient.copy_(x * incoming)

    replay = Replay(forward, backward, loss, incoming, (weight,), gradient)
    losses = []
    for values in ([1.0, 10.0], [5.0, 7.0], [2.0, 0.0]):
        x.copy_(torch.tensor(values))
        losses.append(ReplayLoss.apply(replay, weight))
        (losses[-1] / 4).backward()
    assert [loss.item() for loss in losses] == [32.0, 31.0, 4.0]
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 4.25]


def test_all_gradients_are_copied_at_once() -> None:
    parameters = tuple(torch.nn.Parameter(torch.zeros(size)) for size in ((2, 3), (4,), (5, 2)))
    replay = Replay(lambda: None, lambda: None, torch.zeros(()), torch.zeros(()), parameters, torch.arange(20.0))
    ReplayLoss.apply(replay, *parameters).backward()
    gradients = [each.grad for each in parameters if each.grad is not None]
    assert [gradient.flatten()[0].item() for gradient in gradients] == [0.0, 6.0, 10.0]
    (storage,) = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    assert storage != replay.gradient.untyped_storage().data_ptr()


@pytest.mark.parametrize("objective", ["hp_loss", "hp_dist", "electra", "mlm"])
def test_counts_as_tensors_change_no_bit(objective: str, batch: Batch) -> None:
    results = []
    for counts in (False, True):
        torch.manual_seed(0)
        model = new_model(objective)
        loss = model(batch.to(torch.device("cpu"), counts=counts)).loss
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_nothing_of_the_captured_graph_of_autograd_is_kept(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for CUDA's graphs: each backward would wait for the stream that the kept nodes belong to."""
    stands_in: Any = MagicMock()
    monkeypatch.setattr(torch, "cuda", stands_in)
    model, seen = new_model("hp_loss"), []
    eager = model.forward

    def watched(*arguments: Any, **options: Any) -> Any:
        output = eager(*arguments, **options)
        seen.append(weakref.ref(output.loss))
        return output

    model.forward = watched
    replay_micro_batches(model, batch.to(torch.device("cpu"), counts=True))
    gc.collect()
    assert len(seen) == WARM_UPS + 1 and not any(loss() is not None for loss in seen)


@pytest.mark.parametrize("sizes", [SMALL_MODEL, MODERN], ids=["electra", "modern"])
def test_after_a_capture_the_model_has_its_own_parameters(
    sizes: Any, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the optimizer and DeepSpeed, which have the model's own, would miss gradients of steps without a replay."""
    monkeypatch.setattr(torch, "cuda", MagicMock())
    model = new_model("hp_loss", sizes)
    own = [*model.parameters()]
    replay_micro_batches(model, batch.to(torch.device("cpu"), counts=True))
    assert all(one is other for one, other in zip(model.parameters(), own, strict=True))
    places = [parameter for module in model.modules() for parameter in module.parameters(recurse=False)]
    assert len({*places}) == len(places)  # one in two modules would be replaced in one of them only


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("objective", ["hp_loss", "hp_dist", "electra", "mlm"])
def test_a_graph_gives_the_bits_of_an_eager_step_with_new_batches_weights_and_dropout(objective: str) -> None:
    gpu, results = torch.device("cuda"), []
    batches = [random_batch(4, 16, 300).to(gpu, counts=True) for _ in range(3)]
    for graphed in (False, True):
        torch.manual_seed(0)
        model: Any = new_model(objective, SMALL_MODEL.model_copy(update={"dropout": 0.1}), 300).to(gpu)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if graphed:
            replay_micro_batches(model, batches[0])
        for step, batch in enumerate(batches):
            torch.manual_seed(step)
            model(batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(list(model.parameters()))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
