"""The model of a run: with its initial weights, or with those of its newest checkpoint."""

from pathlib import Path

import torch

from data_prep.config import ConfigError
from pretrain.checkpoint import newest_valid, read_weights
from pretrain.electra import Electra
from pretrain.run_folder import RunDescription, read_run


def build_model(description: RunDescription) -> Electra:
    """The model as a run starts with it, the same in every process: the initial weights follow from the seed."""
    run = description.run
    torch.manual_seed(run.seed)
    return Electra(run.model, run.objective, description.vocab_size, description.mask_token_id)


def load_trained(folder: Path) -> tuple[Electra, int]:
    """The model of a run folder in fp32 on the CPU, and the step its newest whole checkpoint was written at.

    Raises:
        ConfigError: not a run folder, or no whole checkpoint in it.
    """
    ...
