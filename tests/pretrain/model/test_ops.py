"""Claims about the operations in plain torch, and that those for a CPU differ from them by rounding alone."""

import inspect
import runpy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pretrain.model import cpu_ops, ops

PLAIN = runpy.run_path(str(ops.__file__))
"""The module as it is read, whatever an engine of this process has put in place of its functions."""
EXAMPLES: dict[str, Callable[[], tuple[object, ...]]] = {
    "attend": lambda: (*torch.randn(3, 2, 3, 7, 4).unbind(), torch.randn(1, 3, 7, 7, requires_grad=True), 0.0),
    "dropout": lambda: (torch.randn(3, 5), 0.0),
    "layer_norm": lambda: (torch.randn(4, 6), torch.randn(6), torch.randn(6), 1e-12),
    "linear": lambda: (torch.randn(2, 4, 6), torch.randn(3, 6), torch.randn(3)),
    "look_up": lambda: (torch.randint(7, (2, 3)), torch.randn(7, 4)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_form_for_a_cpu_takes_the_same_and_gives_the_same_within_rounding(name: str) -> None:
    torch.manual_seed(0)
    plain, form, values = PLAIN[name], getattr(cpu_ops, name), EXAMPLES[name]()
    assert inspect.signature(form) == inspect.signature(plain)
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
def test_a_layer_is_pytorchs_of_that_name(
    ours: str, theirs: type[nn.Module], sizes: tuple[float, ...], values: Tensor
) -> None:
    outputs = []
    for kind in (PLAIN[ours], theirs):
        torch.manual_seed(0)  # of the weights, and of what is dropped
        outputs.append(kind(*sizes)(values))
    assert issubclass(PLAIN[ours], theirs)
    assert torch.equal(*outputs)


def test_dropout_leaves_values_alone_outside_training() -> None:
    values = torch.randn(9)
    assert PLAIN["Dropout"](0.5).eval()(values) is values
