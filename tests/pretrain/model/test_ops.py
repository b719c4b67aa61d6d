"""Claims about the operations in plain torch, and that the CPU versions differ from them only by rounding."""

import inspect
import runpy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pretrain.model import ops
from pretrain.model.kernels import cpu_ops

PLAIN = runpy.run_path(str(ops.__file__))
"""The module as written, even if an engine in this process has replaced its functions."""
EXAMPLES: dict[str, Callable[[], tuple[object, ...]]] = {
    "attend": lambda: (*torch.randn(3, 2, 3, 7, 4).unbind(), torch.randn(1, 3, 7, 7, requires_grad=True), 0.0),
    "dropout": lambda: (torch.randn(3, 5), 0.0),
    "layer_norm": lambda: (torch.randn(4, 6), torch.randn(6), torch.randn(6), 1e-12),
    "linear": lambda: (torch.randn(2, 4, 6), torch.randn(3, 6), torch.randn(3)),
    "look_up": lambda: (torch.randint(7, (2, 3)), torch.randn(7, 4)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_cpu_version_has_the_same_parameters_and_the_same_results_within_rounding(name: str) -> None:
    torch.manual_seed(0)
    plain, form, values = PLAIN[name], getattr(cpu_ops, name), EXAMPLES[name]()
    assert [*inspect.signature(form).parameters] == [*inspect.signature(plain).parameters]
    torch.testing.assert_close(form(*values), plain(*values))


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


def test_dropout_changes_nothing_outside_training() -> None:
    values = torch.randn(9)
    assert PLAIN["Dropout"](0.5).eval()(values) is values
