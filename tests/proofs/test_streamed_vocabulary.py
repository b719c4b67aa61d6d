"""Claims: with the vocabulary streamed, every objective has the same draws, losses and gradients, within rounding."""

from typing import Any

import pytest
import torch

from bench.batches import random_batch
from pretrain.model import ops
from tests.pretrain.conftest import SMALL_MODEL, new_model

pytest.importorskip("triton")
from pretrain.model.kernels.triton_vocabulary import Softmax

WORDS = 300


def outputs_and_gradients(objective: str, entropies: bool, **switches: Any) -> tuple[Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = new_model(objective, SMALL_MODEL, WORDS, **switches)
    for name, parameter in model.named_parameters():
        if name.startswith("sampler_"):  # away from the initial weights, where p_S = p_G
            torch.nn.init.normal_(parameter, std=0.5)
    output = model(random_batch(4, 12, WORDS), entropies=entropies)
    output.loss.backward()
    return output, [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("objective", "entropies", "switches"),
    [
        ("hp_loss", False, {}),
        ("hp_loss", True, {}),
        ("hp_dist", False, {}),
        ("hp_dist", True, {}),
        ("electra", False, {}),
        ("mlm", True, {}),
        ("oracle", False, {"candidates": 2}),
        ("hp_loss_power", True, {"exponent": 2.0}),
        ("hp_loss", False, {"detach_sampler_input": True, "sampling_bias": False, "gamma": "piecewise"}),
        ("hp_dist", False, {"detach_sampler_input": True, "sampling_bias": False}),
        ("hp_loss", True, {"temperature": 0.5}),  # these draw from every token's weight
        ("hp_loss", False, {"forbid_original": True}),
        ("hp_dist", True, {"mixture": 0.5}),
    ],
)
def test_a_streamed_micro_batch_is_the_same_within_rounding(
    objective: str, entropies: bool, switches: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, expected = outputs_and_gradients(objective, entropies, **switches)
    monkeypatch.setattr(ops, "softmax", Softmax)  # in fp32, to compare
    streamed, gradients = outputs_and_gradients(objective, entropies, **switches)
    if objective != "mlm":
        assert torch.equal(streamed.detected.draw.tokens_BK, whole.detected.draw.tokens_BK)
    for ours, theirs in zip(tree(streamed), tree(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def tree(output: Any) -> list[torch.Tensor]:
    return [part for part in torch.utils._pytree.tree_leaves(output) if isinstance(part, torch.Tensor)]
