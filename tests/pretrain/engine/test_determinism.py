"""Claims about deterministic algorithms, as far as a CPU shows them."""

import re
from collections.abc import Iterator

import pytest
import torch

from electra_sampler.foundation.config import ConfigError
from pretrain.data.batches import Batch
from pretrain.engine.hardware import compute_deterministically
from tests.pretrain.conftest import new_model


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    uninitialized = torch.utils.deterministic.fill_uninitialized_memory
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = uninitialized
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn


def test_an_operation_without_a_deterministic_form_is_refused() -> None:
    values, places = torch.zeros(3), torch.tensor([0, 0])
    values.put_(places, torch.ones(2))
    compute_deterministically({})
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        values.put_(places, torch.ones(2))


def test_cublas_and_nccl_get_settings_that_may_be_chosen_among_the_deterministic_ones() -> None:
    environment: dict[str, str] = {}
    compute_deterministically(environment)
    assert environment == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "^NVLS,NVLSTree"}
    compute_deterministically(chosen := {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "NCCL_ALGO": "Ring"})
    assert chosen == {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "NCCL_ALGO": "Ring"}


@pytest.mark.parametrize(
    ("name", "value", "library"),
    [("CUBLAS_WORKSPACE_CONFIG", ":0:0", "cuBLAS"), ("NCCL_ALGO", "NVLS", "NCCL"), ("NCCL_ALGO", "Tree", "NCCL")],
)
def test_another_setting_is_one_clear_error(name: str, value: str, library: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: got '{re.escape(value)}' .*expected .*{library} is not .*unset"):
        compute_deterministically({name: value})
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("objective", ["hp_loss", "hp_dist", "electra"])
def test_on_a_cpu_no_bit_changes_and_the_mode_stays_on(objective: str, batch: Batch) -> None:
    gradients = []
    for deterministic in (False, True):
        if deterministic:
            compute_deterministically({})
        torch.manual_seed(0)
        model = new_model(objective)
        model(batch).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert torch.are_deterministic_algorithms_enabled()
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
