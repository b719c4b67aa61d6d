"""Claims about the kernels themselves: GELU's slope at any value, and hardly a register spilled on a GPU."""

import pytest
import torch
import torch.nn.functional as F

from .test_attention_kernels import compiled

pytest.importorskip("triton")
from pretrain.model.kernels.triton_elementwise import gelu_linear


def test_far_from_zero_gelu_has_slopes_of_0_and_1() -> None:
    before = torch.tensor([[-1e4, -20.0, -6.0, 0.0, 6.0, 20.0, 1e4]])
    bias = torch.zeros(7, requires_grad=True)
    (slope,) = torch.autograd.grad(gelu_linear(torch.ones(1, 1), before.T, bias).sum(), bias)
    exact = torch.func.vmap(torch.func.grad(F.gelu))(before[0].double())
    assert (slope.double() - exact).abs().max() < 1e-6


@pytest.mark.long
def test_they_compile_for_a100_and_h100_and_hardly_spill() -> None:
    rows = compiled("--hidden_sizes", 64, 1024)
    norms = ["norm_forward", "norm_backward", "norm_forward", "norm_backward"]
    assert [row[0] for row in rows[::2]] == 2 * ["column_sums", "gelu_backward", *norms]
    assert all(int(row[7]) <= 4 * ((row[0], row[3]) == ("gelu_backward", "80")) for row in rows)
