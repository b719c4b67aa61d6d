"""Claims about deterministic algorithms, as far as a CPU shows them."""

from collections.abc import Iterator

import pytest
import torch

from foundation.config import ConfigError
from pretrain.data.batches import Batch
from pretrain.engine.determinism import WORKSPACE, compute_deterministically
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


def test_cublas_gets_a_workspace_that_may_be_chosen_among_the_deterministic_ones() -> None:
    environment: dict[str, str] = {}
    compute_deterministically(environment)
    assert environment == {WORKSPACE: ":4096:8"}
    compute_deterministically(chosen := {WORKSPACE: ":16:8"})
    assert chosen == {WORKSPACE: ":16:8"}


def test_another_workspace_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"^CUBLAS_WORKSPACE_CONFIG: got ':0:0' .*expected :4096:8 or .*unset it"):
        compute_deterministically({WORKSPACE: ":0:0"})
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
