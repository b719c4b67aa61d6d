"""Claims about a run's initial model; test_evaluate.py covers loading a trained one."""

from pathlib import Path

import pytest
import torch

from pretrain.config import with_overrides
from pretrain.data.shards import Shards
from pretrain.presets import PRESETS, with_objective
from pretrain.training.models import build_model, empty_model
from pretrain.training.run_folder import describe


def test_initial_weights_depend_only_on_the_seed(shards_folder: Path) -> None:
    shards = Shards(shards_folder)
    descriptions = [describe(with_overrides(PRESETS["tiny"].run, [f"seed={seed}"]), shards) for seed in (1, 1, 2)]
    first, again, other = (build_model(description) for description in descriptions)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    table = "discriminator.embeddings.word_embeddings.weight"
    assert not torch.equal(first.state_dict()[table], other.state_dict()[table])
    assert first.special_mask_id == shards.manifest.special_tokens.mask


@pytest.mark.parametrize("objective", ["hp_loss", "mlm"])
def test_a_model_without_weights_has_the_same_shapes_and_shared_parameters(objective: str, shards_folder: Path) -> None:
    description = describe(with_objective(PRESETS["tiny"].run, objective), Shards(shards_folder))
    full, empty = (
        {name: (parameter.shape, parameter.dtype, parameter.device) for name, parameter in model.named_parameters()}
        for model in (build_model(description), empty_model(description))
    )
    assert empty == full
