"""Claims about the kernels themselves: GELU's slope at any value, and hardly a register spilled on a GPU."""

import pytest
import torch
import torch.nn.functional as F

from tests.pretrain.model.kernels.conftest import compiled

pytest.importorskip("triton")
from pretrain.model.kernels import elementwise_kernels as kernels
from pretrain.model.kernels.triton_elementwise import column_sums, gelu_linear


def test_far_from_zero_gelu_has_slopes_of_0_and_1() -> None:
    before = torch.tensor([[-1e4, -20.0, -6.0, 0.0, 6.0, 20.0, 1e4]])
    bias = torch.zeros(7, requires_grad=True)
    (slope,) = torch.autograd.grad(gelu_linear(torch.ones(1, 1), before.T, bias).sum(), bias)
    exact = torch.func.vmap(torch.func.grad(F.gelu))(before[0].double())
    assert (slope.double() - exact).abs().max() < 1e-6


@pytest.mark.parametrize(("rows", "width"), [(3, 4), (2, 5)])
def test_a_kernel_that_leaves_its_tensors_is_found(rows: int, width: int) -> None:
    """In memory, where nothing else would fail, as tensors before and after it are there as well."""
    around = torch.ones(5, 4)
    assert column_sums(around[1:3], torch.float32).tolist() == [2.0] * 4
    with pytest.raises(Exception, match="outside of the kernel's tensors"):
        kernels.column_sums[1, 1](around[1:3], torch.empty(1, width), rows, width, 1, R=16, C=16)


@pytest.mark.long
def test_they_compile_for_a100_and_h100_and_hardly_spill() -> None:
    rows = compiled("--hidden_sizes", 64, 1024)
    norms = ["norm_forward", "norm_backward", "norm_forward", "norm_backward"]
    assert [row[0] for row in rows[::2]] == 2 * ["column_sums", "gelu_backward", *norms]
    assert all(int(row[7]) <= 4 * ((row[0], row[3]) == ("gelu_backward", "80")) for row in rows)
