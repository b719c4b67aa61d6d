"""Claims about Muon: its updates, against PyTorch's own, and which parameters it moves; test_engine.py has resumes."""

import pytest
import torch
from torch import nn

from pretrain.engine import muon
from pretrain.engine.muon import MuonAndAdamW, moved_by_muon, orthogonalized
from pretrain.engine.optim import decays, parameter_groups
from tests.pretrain.conftest import MODERN, new_model


@pytest.mark.parametrize("shape", [(24, 24), (24, 40), (40, 24)])
def test_updates_are_those_of_pytorchs_muon(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, in bf16 as PyTorch's."""
    monkeypatch.setattr(muon, "bf16_is_faster", lambda: True)
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(values) for values in torch.randn(1, *shape).repeat(2, 1, 1))
    own = MuonAndAdamW([{"params": [ours], "matrices": (1, *shape)}], lr=0.02, weight_decay=0.1)
    own.state[ours] = {"step": torch.zeros(()), "exp_avg": torch.zeros(shape), "exp_avg_sq": torch.zeros(shape)}
    other = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        own.step()
        other.step()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 16, 40), (2, 40, 16)])
def test_a_matrix_becomes_nearly_orthogonal_and_keeps_its_singular_vectors(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    values = torch.linspace(0.5, 2, min(shape[1:])).expand(shape[0], -1)
    found = torch.linalg.svdvals(orthogonalized(left * values[:, None, :] @ right).float())
    assert found.min() > 0.6 and found.max() < 1.3
    for one, matrix in zip(orthogonalized(left * values[:, None, :] @ right), left @ right, strict=True):
        assert torch.cosine_similarity(one.float().flatten(), matrix.flatten(), dim=0) > 0.97


def test_stacked_matrices_move_as_if_each_were_a_parameter() -> None:
    torch.manual_seed(0)
    stacked, gradient = torch.randn(3, 12, 8), torch.randn(3, 12, 8)
    together = [nn.Parameter(stacked.flatten(0, 1).clone())]
    apart = [nn.Parameter(matrix.clone()) for matrix in stacked]
    for parameters, matrices, gradients in ((together, 3, [gradient.flatten(0, 1)]), (apart, 1, [*gradient])):
        own = MuonAndAdamW([{"params": parameters, "matrices": (matrices, 12, 8)}], lr=0.1)
        for parameter, grad in zip(parameters, gradients, strict=True):
            own.state[parameter] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(parameter)}
            parameter.grad = grad
        own.step()
    assert torch.equal(together[0].view(3, 12, 8), torch.stack(tuple(apart)))


@pytest.mark.parametrize("modern", [False, True])
def test_it_moves_the_matrices_of_the_layers_and_nothing_else(modern: bool) -> None:
    model = new_model("hp_loss", MODERN) if modern else new_model("hp_loss")
    moved = dict(moved_by_muon(model))
    assert all(decays(name) for name in moved)
    others = [name for name, _ in model.named_parameters() if name not in moved]
    assert all(".layer." not in name or not decays(name) for name in others)
    assert {name.split(".")[-2]: shape[0] for name, shape in moved.items() if shape[0] > 1} == (
        {"Wqkv": 3, "Wi": 2} if modern else {}
    )
    groups = parameter_groups(model, 0.01, muon=True)
    assert sum(len(group["params"]) for group in groups if group["matrices"]) == len(moved)
