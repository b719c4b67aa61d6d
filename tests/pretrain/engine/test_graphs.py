"""Claims about the replay of micro-batches: graphs give the bits of eager steps, by a double; tests/gpu has a GPU's."""

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from subprocess import Popen
from typing import Any

import pytest
import torch
from deepspeed.accelerator import real_accelerator
from torch.utils._python_dispatch import TorchDispatchMode

from bench.gpu.declared import declare
from pretrain.data.batches import Batch
from pretrain.engine import deepspeed_config
from pretrain.engine.engine import Engine
from pretrain.engine.graphs import replay_micro_batches
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import start_processes
from tests.pretrain.conftest import MODERN, OBJECTIVES, SMALL_MODEL, new_model
from tests.pretrain.engine import engine_worker as worker
from tests.pretrain.engine import graph_double
from tests.pretrain.engine.graph_double import trained

CASES = [
    *((name, "zero1_bf16", SMALL_MODEL, 1) for name in OBJECTIVES),
    *(("hp_loss", config, SMALL_MODEL, 2) for config in ("zero0_fp32", "zero1_fp32", "zero1_bf16", "zero1_fp16")),
    ("hp_dist", "zero0_fp32", MODERN, 1),
    ("hp_loss", "zero1_bf16", MODERN, 2),
]


@pytest.fixture
def fp16_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """`declare` for one test: what it replaces is put back."""
    monkeypatch.setattr(deepspeed_config, "_impossible", deepspeed_config._impossible)
    monkeypatch.setattr(real_accelerator, "ds_accelerator", real_accelerator.get_accelerator())
    declare()


@pytest.mark.parametrize(("objective", "config", "sizes", "micro_batches"), CASES)
def test_replays_give_the_bits_of_eager_steps_in_weights_norms_and_metrics(
    objective: str, config: str, sizes: Any, micro_batches: int, fp16_declared: None
) -> None:
    """By the double: with dropout, reports and an evaluation between the steps, and accumulation."""
    eager, replayed = (trained(config, objective, sizes, micro_batches, graphed) for graphed in (False, True))
    assert all(torch.equal(*pair) for pair in zip(eager, replayed, strict=True))


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_so_they_do_on_several_ranks_and_no_communication_is_captured(
    ranks: int, launch: Callable[..., Popen[str]]
) -> None:
    process = launch(ranks, graph_double.__file__)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert output.count(": equal") == ranks * len(graph_double.SHARED), output


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


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    graph_double.install(monkeypatch)


def captured(model: Any, batch: Batch, name: str = "zero0_fp32") -> Engine:
    """An engine that replays micro-batches of this model."""
    engine = Engine(model, parameter_groups(model, 0.01), worker.resolved_config(name, 1), start_processes())
    replay_micro_batches(engine, Batch._make(map(torch.as_tensor, batch)), lambda *_: None)
    return engine


def test_nothing_of_the_captured_graph_of_autograd_is_kept(
    batch: Batch, doubled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each backward would wait for the stream that the kept nodes belong to. Nothing is recorded, as that is kept."""
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    model, seen = new_model("hp_loss"), []
    eager = model.forward

    def watched(*arguments: Any, **options: Any) -> Any:
        output = eager(*arguments, **options)
        seen.append(weakref.ref(output.loss))
        return output

    model.forward = watched
    captured(model, batch)
    gc.collect()
    assert len(seen) == 4 and not any(loss() is not None for loss in seen)


@pytest.mark.parametrize("sizes", [SMALL_MODEL, MODERN], ids=["electra", "modern"])
def test_after_a_capture_the_model_has_its_own_parameters(sizes: Any, batch: Batch, doubled: None) -> None:
    """Else the optimizer and DeepSpeed, which have the model's own, would miss gradients of steps without a replay."""
    model = new_model("hp_loss", sizes)
    own = [*model.parameters()]
    captured(model, batch)
    assert all(one is other for one, other in zip(model.parameters(), own, strict=True))
    places = [parameter for module in model.modules() for parameter in module.parameters(recurse=False)]
    assert len({*places}) == len(places)  # one in two modules would be replaced in one of them only


class Calls(TorchDispatchMode):
    """Counts operations, views too."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.count += 1
        return function(*arguments, **(options or {}))


def test_after_a_replay_nothing_is_done_for_each_parameter(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither hooks, copies and views nor a part of the norm, and nothing for a report; a replay itself is one call."""
    monkeypatch.setattr("pretrain.engine.deepspeed_patches.squared_norm", lambda parts: torch.stack(parts[:1]).sum())
    counts = []
    for layers in (1, 4):
        with pytest.MonkeyPatch.context() as patch:
            graph_double.install(patch)
            patch.setattr(graph_double.CUDAGraph, "replay", lambda graph: None)
            engine = captured(
                new_model("hp_loss", SMALL_MODEL.model_copy(update={"layers": layers})), batch, "zero1_bf16"
            )
            tensors = Batch._make(map(torch.as_tensor, batch))
            for entropies in (False, False, True):
                with Calls() as calls:
                    engine.backward(engine.forward(tensors, entropies=entropies).loss)
                    engine.update(1e-3)
                counts.append(calls.count)
    assert len({*counts}) == 1 and counts[0] < 150


def test_a_capture_that_fails_leaves_the_engine_to_eager_steps(batch: Batch, doubled: None) -> None:
    model = new_model("hp_loss")
    eager = model.forward
    model.forward = lambda *given, **options: (output := eager(*given, **options), output.loss.item())[0]
    with pytest.raises(RuntimeError, match="capturing"):
        captured(model, batch)
    assert all(parameter.grad is None for parameter in model.parameters())
