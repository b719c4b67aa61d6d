"""Builds the model of a run, fresh, from other models or from a checkpoint, and its state at step 0."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from electra_sampler.foundation.config import ConfigError, counted
from pretrain.data.remote import local_folder
from pretrain.data.shards import open_shards
from pretrain.engine.checkpoint import Checkpoint, EngineState, all_valid, load, load_weights, require_fit
from pretrain.huggingface.export import sampling_head, sampling_of
from pretrain.huggingface.forms import DISCRIMINATOR, form_of
from pretrain.huggingface.init_from import PER_TOKEN, Donors, find_models, load_donors, load_parts
from pretrain.huggingface.stored import Role, Stored
from pretrain.method.objective import Objective, PredictionConfig
from pretrain.method.registry import objective_class
from pretrain.model.encoder import Stack
from pretrain.model.sizes import EncoderSizes
from pretrain.runs.folder import CHECKPOINTS, DESCRIPTION, RunDescription, data_of, read_run


def build_model(description: RunDescription) -> Objective:
    """Returns the run's model with fresh weights, drawn from the run's seed and so identical in every process."""
    run = description.run
    torch.manual_seed(run.seed)
    return objective_class(run.objective.name)(
        run.model,
        run.objective,
        description.vocab_size,
        description.mask_token_id,
        text=lambda: open_shards(*data_of(description), weights=description.data_weights),
    )


def initial_model(description: RunDescription, donors: Donors | None) -> Objective:
    """Returns a new run's model with fresh weights, or with weights of the models that `--init_from` names."""
    model = build_model(description)
    if donors:
        load_donors(model, donors, tokenizer_of(description))
    return model


def initial_state(
    description: RunDescription, donors: Donors | None, resumes: bool = False
) -> tuple[Objective, EngineState | None]:
    """Returns a new run's model; if the run `resumes`, a model to load its checkpoint into.

    With `keep_optimizer`, also returns the engine's state at step 0: the model's weights, with Adam's moments and step
    count from the newest checkpoint of the run in `init_from`.

    Raises:
        ConfigError: see `load_donors`; or the run in `init_from` has no intact checkpoint.
    """
    if resumes or not description.keep_optimizer:
        return (build_model(description) if resumes else initial_model(description, donors)), None
    folder = Path(description.init_from[0])
    source, (checkpoint,) = read_run(folder), choose_checkpoints(folder, ("newest",))
    kept, _ = load(checkpoint)

    def holding(tensors: Mapping[str, Tensor]) -> Donors:
        return donors_of(source, folder, lambda: filled(empty_model(source), tensors, folder))

    model = initial_model(description, holding(kept.weights))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    moments = {key: initial_moment(description, holding(trained)) for key, trained in kept.moments.items()}
    print(f"keep_optimizer: starts from Adam's state after {kept.adam_steps:,} updates, in {checkpoint.folder}")
    return model, EngineState(kept.adam_steps, {}, weights, moments)


def initial_moment(description: RunDescription, donors: Donors) -> dict[str, Tensor]:
    """Returns one of Adam's moments at step 0, from donors that hold this moment in place of their weights.

    Positions are extended as in the weights; new tokens and parts that start fresh get 0.
    """
    model = empty_model(description)
    moment = {name: parameter.detach().zero_() for name, parameter in model.named_parameters()}
    load_parts(model, donors, tokenizer_of(description))
    for name in moment:
        if name.endswith(PER_TOKEN):
            moment[name][donors[0].config.vocab_size :] = 0
    return moment


def tokenizer_of(description: RunDescription) -> Path:
    """Returns the folder of the tokenizer that the run's data was built with."""
    return local_folder(Path(description.data[0])) / "tokenizer"


def is_run(names: Sequence[str]) -> bool:
    """Returns true if `--init_from` names a run rather than models."""
    return len(names) == 1 and (Path(names[0]) / DESCRIPTION).is_file()


def find_donors(names: Sequence[str]) -> Donors:
    """Returns the models that `--init_from` names: in a run's newest checkpoint, or in Hugging Face folders.

    Raises:
        ConfigError: no such models.
    """
    if not is_run(names):
        return find_models(names)
    folder = Path(names[0])
    return donors_of(read_run(folder), folder, lambda: load_trained(folder)[0])


def donors_of(description: RunDescription, folder: Path, load_model: Callable[[], Objective]) -> Donors:
    """Returns the models of the run in `folder`; `load_model` is called once, when weights are first read."""
    trained, run = cache(load_model), description.run
    settings = sampling_of(run.objective, description.mask_share)

    def stored(role: Role, config: EncoderSizes, place: str) -> Stored:
        def weights() -> dict[str, Tensor]:
            head = sampling_head(trained()) if role == "generator" else {}
            return trained().exported(place).state_dict() | head

        return Stored(role, folder, form_of(config, DISCRIMINATOR), config, folder / "tokenizer", weights, settings)

    first, *others = objective_class(run.objective.name).encoders(run.model, description.vocab_size)
    if others:
        return stored("generator", first, "generator"), stored("discriminator", others[0], ".")
    return (stored("generator" if isinstance(run.objective, PredictionConfig) else "discriminator", first, "."),)


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
        if isinstance(module, Stack):
            module.packs = False
            for layer in module.layer:
                layer.compile(dynamic=False)


def load_trained(folder: Path, step: str = "newest", average: int = 1) -> tuple[Objective, int]:
    """Loads a run's checkpoint of a step, by default the newest intact one; returns its model (fp32, CPU) and step.

    The weights are the mean over this checkpoint and the ones before it, `average` in all.

    Raises:
        ConfigError: not a run folder, or it lacks intact checkpoints to load.
    """
    description = read_run(folder)
    (last,) = choose_checkpoints(folder, (step,), "step")
    if average == 1:
        return load_checkpoint(description, last), last.step
    averaged = [*islice(all_valid(folder / CHECKPOINTS, wanted=lambda step: step <= last.step), average)][::-1]
    if len(averaged) < average:
        raise ConfigError(
            f"average: got {average}, but {folder} has {counted(len(averaged), 'intact checkpoint')} up to step"
            f" {last.step:,}; use --average {len(averaged)}, or keep more with --set keep_checkpoints={average}"
        )
    model, mean = build_model(description), dict[str, Tensor]()
    for checkpoint in averaged:
        for name, weight in filled(model, load_weights(checkpoint), checkpoint.folder).named_parameters():
            mean[name] = mean.get(name, torch.zeros(())) + weight.detach().double() / average
    return filled(model, {name: weight.float() for name, weight in mean.items()}, last.folder), last.step


def choose_checkpoints(run: Path, steps: Sequence[str], option: str = "steps") -> list[Checkpoint]:
    """Returns the requested intact checkpoints of a run, oldest first; `steps` is `newest`, `all`, or step numbers.

    Errors name the `option` that they were given by.

    Raises:
        ConfigError: there is none, or none at one of the steps.
    """
    named = () if tuple(steps) in (("newest",), ("all",)) else steps
    found = all_valid(run / CHECKPOINTS, wanted=lambda step: not named or str(step) in named)
    chosen = list(islice(found, 1) if tuple(steps) == ("newest",) else found)[::-1]
    missing = [step for step in named if step not in {str(one.step) for one in chosen}]
    others = [str(one.step) for one in all_valid(run / CHECKPOINTS, lambda line: None)][::-1] if missing else []
    if not chosen and not others:
        raise ConfigError(f"run: {run} has no complete checkpoint yet; train longer, or name another run")
    if missing:
        raise ConfigError(
            f"{option}: got {' '.join(missing)}, expected newest, all, or steps at which {run} has checkpoints:"
            f" {' '.join(others)}"
        )
    return chosen


def load_checkpoint(description: RunDescription, checkpoint: Checkpoint) -> Objective:
    """Returns the run's model with the weights of this checkpoint, in fp32 on the CPU.

    Raises:
        ConfigError: the weights belong to a different model.
    """
    return filled(build_model(description), load_weights(checkpoint), checkpoint.folder)


def filled(model: Objective, tensors: Mapping[str, Tensor], folder: Path) -> Objective:
    """Returns the model with its parameters loaded from `tensors`, by name; errors name the checkpoint's `folder`.

    Raises:
        ConfigError: the tensors belong to a different model.
    """
    require_fit(tensors, {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}, folder)
    model.load_state_dict(tensors, strict=False)  # a shared parameter is stored once, under its first name
    return model
