"""The model of a run: with its initial weights, or with those of its newest checkpoint."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch

from foundation.config import ConfigError
from pretrain.engine.checkpoint import Checkpoint, all_valid, load_weights
from pretrain.huggingface.init_from import find_pair, load_pair
from pretrain.method.objectives import objective_class
from pretrain.method.objectives.objective import Objective
from pretrain.model.encoder import Layer
from pretrain.training.run_folder import CHECKPOINTS, RunDescription, read_run


def build_model(description: RunDescription) -> Objective:
    """The model of a run's configuration, the same in every process: its fresh weights follow from the seed."""
    run = description.run
    torch.manual_seed(run.seed)
    trained = objective_class(run.objective.name)
    return trained(run.model, run.objective, description.vocab_size, description.mask_token_id)


def initial_model(description: RunDescription) -> Objective:
    """The model a run's first step changes: fresh, or with the weights of the pair it starts from."""
    model = build_model(description)
    if description.init_from:
        load_pair(model, find_pair(description.init_from))
    return model


def empty_model(description: RunDescription) -> Objective:
    """The model without weights: of a rank that gets them from the first one.

    To draw base's takes 5 s of a core and twice the memory of the weights that a rank of half precision keeps.
    """
    with torch.device("meta"):
        model = build_model(description)
    return model.to_empty(device="cpu")


def compile_layers(model: torch.nn.Module) -> None:
    """Has torch.compile fuse each layer of the encoders from its first step on; the same numbers within rounding."""
    for module in model.modules():
        if isinstance(module, Layer):
            module.compile(dynamic=False)


def load_trained(folder: Path, step: int | None = None) -> tuple[Objective, int]:
    """The model of a run folder's newest whole checkpoint, or of the one at `step`, in fp32 on the CPU; and its step.

    Raises:
        ConfigError: not a run folder, or no such whole checkpoint in it.
    """
    description = read_run(folder)
    (checkpoint,) = choose_checkpoints(folder, ("newest" if step is None else str(step),))
    return load_checkpoint(description, checkpoint), checkpoint.step


def choose_checkpoints(run: Path, steps: Sequence[str]) -> list[Checkpoint]:
    """The whole checkpoints of a run that are asked for, the oldest first.

    Raises:
        ConfigError: there is none, or none at one of the steps.
    """
    found = all_valid(run / CHECKPOINTS)
    chosen = list(islice(found, 1) if tuple(steps) == ("newest",) else found)[::-1]
    if not chosen:
        raise ConfigError(f"run: {run} has no whole checkpoint yet; train on, or name another run")
    if tuple(steps) in (("newest",), ("all",)):
        return chosen
    by_step = {str(checkpoint.step): checkpoint for checkpoint in chosen}
    if missing := [step for step in steps if step not in by_step]:
        raise ConfigError(
            f"steps: got {' '.join(missing)}, expected newest, all, or steps that {run} has checkpoints of:"
            f" {' '.join(by_step)}"
        )
    return [by_step[step] for step in sorted(set(steps), key=int)]


def load_checkpoint(description: RunDescription, checkpoint: Checkpoint) -> Objective:
    """The run's model with the weights of this checkpoint, in fp32 on the CPU.

    Raises:
        ConfigError: the weights are another model's.
    """
    model = build_model(description)
    weights = load_weights(checkpoint)  # a shared parameter stands once, under its first name
    model.load_state_dict(weights, strict=False)
    missing = {name for name, _ in model.named_parameters()} ^ weights.keys()
    if missing:
        raise ConfigError(f"run: weights of {checkpoint.folder} are not this model's, first {min(missing)}")
    return model
