"""Claims: the shapes of a micro-batch are static, its forward, backward and metrics never wait for the device nor copy
anything to it, and under deterministic algorithms no operation is refused on a GPU. So a CUDA graph can replay it. The
heads of fine-tuning are no exception.

Computed on the meta device, whose tensors have no values: an operation that needs one raises an error.
"""

import runpy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.batches import random_batch
from finetune.config import GlueConfig, SquadConfig
from finetune.glue.job import GlueJob
from finetune.glue.tasks import TASKS
from finetune.presets import HEAD_KINDS, settings_for
from finetune.running.job import Batch as TaskBatch
from finetune.running.job import Features, Job
from finetune.squad.features import Windows
from finetune.squad.files import VERSIONS, SquadFile
from finetune.squad.job import SquadJob
from finetune.tagging.files import TASKS as TAGGING_TASKS
from finetune.tagging.job import TaggedFeatures, TaggingJob
from pretrain.model import ops
from pretrain.model.encoder import ElectraEncoder, ElectraStack
from pretrain.training.metrics import MetricTotals
from tests.pretrain.conftest import OBJECTIVES, SMALL_MODEL, new_model

META = torch.device("meta")
WORDS = 300
REFUSED = {
    *("cumsum", "cumsum_", "put_", "histc", "bincount", "median", "kthvalue", "nll_loss2d_forward"),
    *("scatter_reduce", "grid_sampler_2d_backward", "ctc_loss", "_embedding_bag_backward"),
}
"""Operations on floating-point tensors that PyTorch, by its documentation, refuses on a GPU in deterministic mode.

One is refused only where it adds up its results (ATen/native/cuda/NLLLoss2d.cu): `nll_loss2d_forward` with a reduction.
"""
NO_REDUCTION = 0


class OnlyTheDevice(TorchDispatchMode):
    """Raises an error for an operation that reads a tensor of the host, or that a GPU would refuse.

    If it `never_sorts`, also for one that adds in a fixed order at places given by a tensor.
    """

    def __init__(self, never_sorts: bool = False) -> None:
        super().__init__()
        self.never_sorts = never_sorts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
        assert all(part.is_meta or not part.dim() for part in read), f"{func} reads a tensor of the host"
        name, strict = func.overloadpacket.__name__, torch.are_deterministic_algorithms_enabled()
        assert not (strict and self.never_sorts and "scatter_add" in name), f"{func} takes a sort and thirty kernels"
        if strict and any(part.is_floating_point() for part in read):
            allowed = name == "nll_loss2d_forward" and args[3] == NO_REDUCTION
            assert allowed or name not in REFUSED, f"{func} is not deterministic"
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def plain_and_deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The operations as a GPU runs them, even if an engine in this process has replaced them by a CPU's."""
    for name, form in runpy.run_path(str(ops.__file__)).items():
        if callable(form) and hasattr(ops, name) and name.islower():
            monkeypatch.setattr(ops, name, form)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def model_of(objective: str, **sizes: Any) -> Any:
    model = new_model(objective, SMALL_MODEL.model_copy(update={"dropout": 0.1, **sizes}), WORDS).to(META)
    if objective in ("uniform", "unigram"):  # read from the run's shards, once
        model.p_V = torch.empty(WORDS, device=META)
    return model


def train(model: Any, entropies: bool) -> None:
    batch = random_batch(2, 12, WORDS).to(META, counts=True)
    with OnlyTheDevice(never_sorts=True):
        output = model(batch, entropies=entropies)
        output.loss.backward()
    with OnlyTheDevice():
        MetricTotals(META).add(batch, output, entropies)
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("objective", "entropies", "sharing"),
    [
        *((objective, entropies, "es") for objective in OBJECTIVES for entropies in (False, True)),
        *(("hp_loss", False, sharing) for sharing in ("nes", "gdes")),
    ],
)
def test_a_micro_batch_of_every_objective_stays_on_the_device_however_embeddings_are_shared(
    objective: str, entropies: bool, sharing: str
) -> None:
    train(model_of(objective, embedding_sharing=sharing), entropies)


def test_so_does_one_whose_layers_are_recomputed() -> None:
    model = model_of("hp_loss")
    for module in model.modules():
        if isinstance(module, ElectraStack):
            module.recompute = True
    train(model, entropies=False)


@pytest.mark.parametrize(
    "step",
    [
        lambda values: values.sum().item(),
        lambda values: values[values > 0],
        lambda values: values.nonzero(),
        lambda values: values if (values > 0).all() else -values,
        lambda values: values + torch.arange(3.0).to(META),
        lambda values: values.cumsum(0),
        lambda values: F.nll_loss(values[None, :, None, None], torch.zeros_like(values[:1, None, None]).long()),
    ],
    ids=["item", "mask", "nonzero", "branch", "copy", "cumsum", "nll"],
)
def test_the_check_notices_every_way_to_leave_the_device(step: Callable[[Tensor], Any]) -> None:
    values = torch.empty(3, device=META)
    with OnlyTheDevice(), pytest.raises((AssertionError, RuntimeError)):
        step(values)


EMPTY = Features([], [], [])
SHARED: dict[str, Any] = {"train": EMPTY, "train_examples": 0, "pad_id": 0}


def jobs() -> Iterator[tuple[str, Job, Tensor]]:
    """Yields every head with its loss, and targets for a batch of two sequences of 12 tokens."""
    for task, head in (("CoLA", "electra"), ("CoLA", "hf"), ("STS-B", "electra")):
        glue = settings_for(GlueConfig, task, 16, 12, {"head": head})
        yield f"{task} {head}", GlueJob(task=TASKS[task], settings=glue, dev={}, tests={}, **SHARED), torch.zeros(2)
    windows = Windows([], EMPTY, [])
    for head in HEAD_KINDS:
        squad = settings_for(SquadConfig, "SQuAD 2.0", 16, 12, {"head": head, "max_question": 4})
        answerer = SquadJob(task=VERSIONS["2.0"], settings=squad, dev_file=SquadFile([], []), dev=windows, **SHARED)
        yield f"SQuAD {head}", answerer, torch.zeros(2, 3)
    dev = TaggedFeatures([], EMPTY, np.zeros(0))
    tagger = TaggingJob(
        task=TAGGING_TASKS["NER"],
        classes=("B", "I", "O"),
        majority="O",
        words_per_feature=1.0,
        dev=dev,
        test=None,
        **SHARED,
    )
    yield "NER", tagger, torch.zeros(2, 12)


@pytest.mark.parametrize(("job", "target_B"), [pytest.param(*rest, id=name) for name, *rest in jobs()])
def test_neither_fine_tuning_nor_its_predictions_use_an_operation_that_a_gpu_refuses(
    job: Job, target_B: Tensor
) -> None:
    sizes: Any = SMALL_MODEL.model_copy(update={"dropout": 0.1}).discriminator(WORDS)
    model = job.build(ElectraEncoder(sizes)).to(META)
    ids_BL = torch.zeros(2, 12, dtype=torch.int64, device=META)
    batch = TaskBatch(ids_BL, ids_BL.bool(), ids_BL, target_B.to(META), torch.ones(2, device=META))
    with OnlyTheDevice():
        job.losses(model(batch), batch).sum().backward()
        model.eval()(batch)
    assert all(parameter.grad is not None for parameter in model.parameters())
