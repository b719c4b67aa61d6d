"""Claims about the operations in plain torch; test_cpu_ops.py has those about the results of the CPU's."""

import inspect
import runpy

import pytest
import torch
from torch import Tensor, nn

from pretrain.model import ops
from pretrain.model.kernels import cpu_ops

PLAIN = runpy.run_path(str(ops.__file__))
"""The module as written, even if an engine in this process has replaced its functions."""


@pytest.mark.parametrize("name", ["attend", "dropout", "layer_norm", "linear", "look_up", "tokens_of"])
def test_the_cpu_version_has_the_same_parameters(name: str) -> None:
    plain, form = (inspect.signature(forms[name]).parameters for forms in (PLAIN, vars(cpu_ops)))
    assert [*form] == [*plain]


@pytest.mark.parametrize(
    ("ours", "theirs", "sizes", "values"),
    [
        ("Linear", nn.Linear, (6, 3), torch.randn(2, 4, 6)),
        ("LayerNorm", nn.LayerNorm, (6,), torch.randn(4, 6)),
        ("Embedding", nn.Embedding, (7, 4), torch.arange(6).view(2, 3)),
        ("Dropout", nn.Dropout, (0.3,), torch.randn(50)),
    ],
)
def test_a_layer_equals_pytorchs_of_that_name(
    ours: str, theirs: type[nn.Module], sizes: tuple[float, ...], values: Tensor
) -> None:
    outputs = []
    for kind in (PLAIN[ours], theirs):
        torch.manual_seed(0)  # for the weights, and for dropout
        outputs.append(kind(*sizes)(values))
    assert issubclass(PLAIN[ours], theirs)
    assert torch.equal(*outputs)
