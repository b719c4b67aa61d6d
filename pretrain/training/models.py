"""Builds the model of a run, with its initial weights or with those of a checkpoint."""

from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import torch

from foundation.config import ConfigError
from pretrain.engine.checkpoint import Checkpoint, all_valid, load_weights
from pretrain.huggingface.folders import fill
from pretrain.huggingface.init_from import Source, Sources, find_models, load_sources
from pretrain.method.objectives import objective_class
from pretrain.method.objectives.objective import Objective
from pretrain.model.encoder import EncoderConfig, Layer
from pretrain.training.run_folder import CHECKPOINTS, DESCRIPTION, RunDescription, read_run


def build_model(description: RunDescription) -> Objective:
    """Returns the run's model with fresh weights, drawn from the run's seed and so identical in every process."""
    run = description.run
    torch.manual_seed(run.seed)
    trained = objective_class(run.objective.name)
    return trained(run.model, run.objective, description.vocab_size, description.mask_token_id)


def initial_model(description: RunDescription, resumes: bool = False) -> Objective:
    """Returns the model as a new run starts: with fresh weights, those of the models in `init_from`, or the frozen
    generator of `generator_from`. A run that `resumes` reads the generator from its checkpoint instead.
    """
    model = build_model(description)
    if description.generator_from and not resumes:
        source = find_sources((description.generator_from,)).generator
        assert source is not None  # by the plan
        fill(model.exported("generator"), source.weights(), source.folder)
    if description.init_from:
        load_sources(model, find_sources(description.init_from), Path(description.data[0]) / "tokenizer")
    return model


def find_sources(names: Sequence[str]) -> Sources:
    """The models that `--init_from` names: those of a run's newest checkpoint, or Hugging Face folders.

    Raises:
        ConfigError: no such models.
    """
    folder = Path(names[0])
    if len(names) > 1 or not (folder / DESCRIPTION).is_file():
        return find_models(names)
    description = read_run(folder)
    trained = cache(lambda: load_trained(folder)[0])

    def source(place: str, config: EncoderConfig) -> Source:
        return Source(folder, config, folder / "tokenizer", lambda: dict(trained().exported(place).state_dict()))

    def sampling_head() -> dict[str, torch.Tensor]:
        return {name: weight for name, weight in trained().state_dict().items() if name.startswith("sampler_")}

    run = description.run
    kind = objective_class(run.objective.name)
    generator, *discriminator = kind.encoders(run.model, description.vocab_size)
    if not discriminator:
        return Sources(source(".", generator), None)
    return Sources(source("generator", generator), source(".", *discriminator), sampling_head, run.objective.name)


def empty_model(description: RunDescription) -> Objective:
    """Returns the model with uninitialized weights, for ranks that receive them from the first rank.

    Drawing the base model's weights takes 5 s on one core, and twice the memory that a half-precision rank needs later.
    """
    with torch.device("meta"):
        model = build_model(description)
    return model.to_empty(device="cpu")


def compile_layers(model: torch.nn.Module) -> None:
    """Compiles each encoder layer with torch.compile at its first forward; results are equal within rounding."""
    for module in model.modules():
        if isinstance(module, Layer):
            module.compile(dynamic=False)


def load_trained(folder: Path, step: int | None = None) -> tuple[Objective, int]:
    """Loads a run's newest intact checkpoint, or that of `step`; returns its model in fp32 on the CPU, and its step.

    Raises:
        ConfigError: not a run folder, or no such intact checkpoint in it.
    """
    description = read_run(folder)
    (checkpoint,) = choose_checkpoints(folder, ("newest" if step is None else str(step),))
    return load_checkpoint(description, checkpoint), checkpoint.step


def choose_checkpoints(run: Path, steps: Sequence[str]) -> list[Checkpoint]:
    """Returns the requested intact checkpoints of a run, oldest first; `steps` is `newest`, `all`, or step numbers.

    Raises:
        ConfigError: there is none, or none at one of the steps.
    """
    found = all_valid(run / CHECKPOINTS)
    chosen = list(islice(found, 1) if tuple(steps) == ("newest",) else found)[::-1]
    if not chosen:
        raise ConfigError(f"run: {run} has no complete checkpoint yet; train longer, or name another run")
    if tuple(steps) in (("newest",), ("all",)):
        return chosen
    by_step = {str(checkpoint.step): checkpoint for checkpoint in chosen}
    if missing := [step for step in steps if step not in by_step]:
        raise ConfigError(
            f"steps: got {' '.join(missing)}, expected newest, all, or steps at which {run} has checkpoints:"
            f" {' '.join(by_step)}"
        )
    return [by_step[step] for step in sorted(set(steps), key=int)]


def load_checkpoint(description: RunDescription, checkpoint: Checkpoint) -> Objective:
    """Returns the run's model with the weights of this checkpoint, in fp32 on the CPU.

    Raises:
        ConfigError: the weights belong to a different model.
    """
    model = build_model(description)
    weights = load_weights(checkpoint)  # a shared parameter is stored once, under its first name
    model.load_state_dict(weights, strict=False)
    missing = {name for name, _ in model.named_parameters()} ^ weights.keys()
    if missing:
        raise ConfigError(
            f"run: the weights in {checkpoint.folder} do not fit the model in run.json, first {min(missing)}"
        )
    model.progress = checkpoint.step / description.run.optim.steps
    return model
