"""Claims about contenders: the parts are timed on the same kind of model as the steps."""

from typing import Any

import pytest
import torch

import bench.contender
from bench.batches import random_batch
from bench.contender import StepOptions, ours, parts, train
from pretrain.model.encoder import Layer
from pretrain.presets import preset, with_objective


@pytest.mark.long
@pytest.mark.parametrize("compiled", [True, False])
def test_parts_are_timed_on_compiled_layers_exactly_when_steps_are(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[torch.nn.Module] = []

    def seen(model: Any, work: Any) -> None:
        models.append(model)
        train(model, work)

    monkeypatch.setattr(bench.contender, "train", seen)
    options = StepOptions(preset="tiny", batch_size=2, seq_length=16)
    run, batch = with_objective(preset("tiny"), "hp_loss"), random_batch(2, 16)
    assert min(parts(run, batch, options, ours(run, batch, options, compiled)).values()) >= 0
    layers = [module for model in models for module in model.modules() if isinstance(module, Layer)]
    assert layers and all((layer._compiled_call_impl is not None) == compiled for layer in layers)
