"""Muon: orthogonalized momentum updates each matrix of an encoder layer; AdamW updates all other parameters.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon), with the step size of Liu et al. 2025 (arXiv 2502.16982), which
gives a matrix the root mean square of AdamW's updates, so AdamW's learning rate and weight decay serve both.

Shape letters: P matrices in one parameter, N rows, M columns.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from electra_sampler.foundation.machine import bf16_is_faster

MOMENTUM, ITERATIONS = 0.95, 5
"""Decay of the momentum, and Newton-Schulz iterations (Jordan et al.)."""
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x^3 and x^5 in an iteration (Jordan et al.)."""
UPDATE_RMS = 0.2
"""Root mean square of AdamW's updates (Liu et al., section 2.2)."""
STACKED = {"Wqkv.weight": 3, "Wi.weight": 2}
"""Matrices that a parameter of the modern encoder stacks: query, key and value; input and gate."""


def moved_by_muon(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name of each parameter that Muon moves, and the shape (P, N, M) of the matrices in it."""
    for name, parameter in model.named_parameters():
        if ".layer." in name and parameter.dim() == 2:
            matrices = next((parts for end, parts in STACKED.items() if name.endswith(end)), 1)
            yield name, (matrices, parameter.shape[0] // matrices, parameter.shape[1])


def orthogonalized(matrix_PNM: Tensor) -> Tensor:
    """Returns U V^T of each matrix U S V^T, roughly: singular values between 0.7 and 1.2.

    In bf16, as published; in fp32 on a CPU that multiplies fp32 faster.
    """
    computes_bf16 = matrix_PNM.device.type != "cpu" or bf16_is_faster()
    x_PNM = matrix_PNM.to(torch.bfloat16 if computes_bf16 else torch.float32)
    tall = x_PNM.shape[1] > x_PNM.shape[2]
    x_PNM = x_PNM.mT if tall else x_PNM
    x_PNM = x_PNM / x_PNM.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = QUINTIC
    for _ in range(ITERATIONS):
        gram_PNN = x_PNM @ x_PNM.mT
        update_PNN = torch.baddbmm(gram_PNN, gram_PNN, gram_PNN, beta=b, alpha=c)
        x_PNM = torch.baddbmm(x_PNM, update_PNN, x_PNM, beta=a)
    return x_PNM.mT if tall else x_PNM


class MuonAndAdamW(torch.optim.AdamW):
    """AdamW, except for groups with nonempty `matrices`, which Muon updates; `exp_avg` is their momentum.

    `matrices` is the shape (P, N, M) of each parameter in the group. `exp_avg_sq` of such groups stays 0.
    """

    orthogonal: Callable[[Tensor, Tensor, Sequence[int]], Tensor] = staticmethod(
        lambda master, direction, matrices: orthogonalized(direction.view(*matrices))
    )
    """Given a master, its direction and `matrices`, returns the direction with each matrix orthogonalized. Where a
    master is not a whole parameter, the back end replaces this."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        groups = self.param_groups
        for group in groups:
            for master in group["params"] if group.get("matrices") else ():
                if master.grad is not None:
                    momentum = self.state[master]["exp_avg"].lerp_(master.grad, 1 - MOMENTUM)
                    nesterov = master.grad.lerp(momentum, MOMENTUM)
                    rate = UPDATE_RMS * group["lr"] * max(group["matrices"][1:]) ** 0.5
                    master.mul_(1 - group["lr"] * group["weight_decay"])
                    master.add_(self.orthogonal(master, nesterov, group["matrices"]).reshape(master.shape), alpha=-rate)
                    self.state[master]["step"] += 1
        self.param_groups = [group for group in groups if not group.get("matrices")]
        super().step()
        self.param_groups = groups
