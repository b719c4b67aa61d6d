"""Claims about the kernels themselves: the estimated loss keeps its digits, and on a GPU no register is spilled."""

import pytest
import torch
from torch import Tensor

from tests.pretrain.model.kernels.conftest import compiled

pytest.importorskip("triton")
from pretrain.model.distribution import BLOCK
from pretrain.model.kernels.triton_vocabulary import Softmax
from tests.pretrain.model.kernels.conftest import Given


def losses(z_S: Tensor, original: int, least: float, exponent: float) -> Tensor:
    """L_hat^exponent for one row of scores z: the weights under a uniform p, times the number of tokens."""
    table_VE, zero = z_S[:, None], torch.zeros(1, 1)
    z = Given(torch.ones(1, 1), None, table_VE)
    weights = Softmax(zero, table_VE, None).times_estimated_loss(z, torch.tensor([original]), exponent, least)
    return weights.block(torch.zeros(1, 1, dtype=torch.int64))[0, : len(z_S)] * len(z_S)


@pytest.mark.parametrize("exponent", [1.0, 2.0, -1.0])
def test_the_estimated_loss_has_all_digits_from_the_least_score_to_the_largest(exponent: float) -> None:
    z_S = torch.linspace(-60, 60, BLOCK - 5)
    signed = torch.where(torch.arange(len(z_S)) == 70, -z_S, z_S).double()
    expected = torch.nn.functional.softplus(signed, threshold=1e9) ** exponent
    torch.testing.assert_close(
        losses(z_S, 70, 1e-30, exponent).double(), expected, rtol=3e-5, atol=torch.finfo(torch.float32).tiny
    )


def test_the_estimated_loss_has_a_lower_bound() -> None:
    assert losses(torch.tensor([-100.0, 1.0]), 1, 1e-6, 1.0)[0].item() == pytest.approx(1e-6)


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("embedding_size", [128, 768])
def test_compiled_for_a_gpu_no_kernel_spills_a_register_and_two_fit_a_multiprocessor(
    capability: int, embedding_size: int
) -> None:
    rows = compiled("--embedding_sizes", embedding_size, "--architectures", capability)
    assert [row[0] for row in rows] == ["peaks", "weigh", "weights_of_block", "slopes"]
    assert not [row for row in rows if int(row[7])]
    shared = {80: 163, 90: 227}[capability]
    assert all(float(row[8]) * 2 <= shared for row in rows)
