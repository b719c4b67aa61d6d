"""A stored model: read from a folder, the hub or a run's checkpoint, built as modules, written as a folder."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor, nn

from electra_sampler.foundation.config import ConfigError, StrictConfig
from electra_sampler.foundation.files import take_mode
from pretrain.huggingface.folders import fill, find_folder, load_tokenizer, read_config, read_weights
from pretrain.huggingface.forms import DISCRIMINATOR, GENERATOR, WORDS, Form, form_named, form_of, of_encoder, renamed
from pretrain.model import ops
from pretrain.model.encoder import Encoder
from pretrain.model.sizes import EncoderSizes

Role = Literal["generator", "discriminator"]
"""A model that predicts masked tokens, or any other."""
HEADS: dict[Role, tuple[tuple[str, ...], ...]] = {
    "generator": (("generator_predictions", "generator_lm_head"), ("sampler_transform", "sampler_scores")),
    "discriminator": (("discriminator_predictions",),),
}
"""Modules of a role's pre-training head, then of a generator's sampling head. Other samplers than the paper's may have
other modules in its place; their names begin with `sampler_`, too.
"""
SAMPLER_NAMES = dict(zip(*HEADS["generator"], strict=True))
"""Modules of a generator's own head, each with its counterpart in the sampling head."""
SAMPLING = "replacement_sampling"
"""Key of `Sampling` in a discriminator's `config.json`."""
LEARNED = ("hp_loss", "hp_dist")
"""Objectives whose sampling head an export holds."""
SAMPLING_HEAD = "sampling_head.safetensors"
"""The sampling head, beside the generator's weights: under the names of the generator's own head, in whose place it
computes z of HP_Loss, or HP_Dist's scores.
"""


class Sampling(StrictConfig):
    """How the replacements were drawn that a discriminator was trained on, as an export records it."""

    objective: str
    mask_share: float = Field(gt=0, le=1)
    """Share of the word pieces that were masked, and not kept for the generator to see."""
    temperature: float = Field(default=1.0, gt=0)
    forbid_original: bool = False
    mixture: float = Field(default=0.0, ge=0, lt=1)
    importance_weighting: bool = False


class Stored(NamedTuple):
    """A model on disk or of a run, under ELECTRA's names; its weights are read when they are needed."""

    role: Role
    folder: Path
    """Where it is from, as messages name it."""
    form: Form
    config: EncoderSizes
    """Configuration of its encoder."""
    tokenizer: Path
    weights: Callable[[], dict[str, Tensor]]
    """A generator's include those of its sampling head, if it has one."""
    settings: Mapping[str, Any] = {}
    """The settings in its `config.json` besides the encoder's."""

    def load_tokenizer(self) -> Any:
        """Loads its tokenizer; raises `ConfigError` as the function of this name does."""
        return load_tokenizer(self.tokenizer, self.config.vocab_size)

    def encoder(self, *, random_weights: bool = False, **changes: Any) -> Encoder:
        """Builds its encoder, with `changes` to its configuration, such as dropout.

        With `random_weights`, the weights are not read, and the encoder keeps its random initialization.

        Raises:
            ConfigError: the weights do not fit the configuration.
        """
        encoder = self.form.parts.encoder(dataclasses.replace(self.config, **changes))
        if not random_weights:
            fill(nn.ModuleDict({"electra": encoder}), of_encoder(self.weights()), self.folder)
        return encoder

    def build(self, random_weights: bool = False, sampling_head: bool = False) -> nn.ModuleDict:
        """Builds its encoder, `electra`, and the modules of its pre-training head and, if wanted, of its sampling head.

        Raises:
            ConfigError: it has no pre-training head, or the weights do not fit the configuration.
        """
        weights = {name: weight for name, weight in self.weights().items() if sampling_head or not of_sampler(name)}
        modules = {name.partition(".")[0] for name in weights}
        if WORDS not in weights or HEADS[self.role][0][0] not in modules:
            raise ConfigError(
                f"models: {self.folder} has no word embeddings or no pre-training head; expected an"
                " exported pre-trained model, not a fine-tuned one"
            )
        encoder = self.form.parts.encoder(self.config)
        model, words = nn.ModuleDict({"electra": encoder}), encoder.embeddings.word_embeddings.weight
        for transform, *scores in (head for head in HEADS[self.role] if head[0] in modules):
            model[transform] = (self.form.parts.transform if scores else self.form.parts.detector)(self.config)
            for name in scores:
                matrix = ops.Linear(words.shape[1], self.config.vocab_size)
                nn.init.zeros_(matrix.bias)
                weights.setdefault(f"{name}.bias", matrix.bias)
                if f"{name}.weight" not in weights:
                    matrix.weight, weights[f"{name}.weight"] = words, weights[WORDS]
                model[name] = matrix
        if not random_weights:
            fill(model, weights, self.folder)
        return model


def of_sampler(name: str) -> bool:
    return name.startswith("sampler_")


def read_stored(name: str | Path) -> Stored:
    """Returns the model in a local folder or, if there is a network, of this name on the hub.

    Raises:
        ConfigError: there is none, of no form that is known here, or with settings that this implementation lacks.
    """
    folder = find_folder(name)
    path, values = folder / "config.json", read_config(folder)
    form = form_named(values.get("model_type"), f"model: {path}")
    config = form.read(values, f"model: {path}")
    architecture = f"ElectraFor{(values.get('architectures') or [''])[0].partition('For')[2]}"

    def weights() -> dict[str, Tensor]:
        head = read_weights(folder, SAMPLING_HEAD) if (folder / SAMPLING_HEAD).is_file() else {}
        sampler = {renamed(name, SAMPLER_NAMES): weight for name, weight in form.ours(head, GENERATOR).items()}
        return form.ours(read_weights(folder), architecture) | sampler

    role: Role = (
        "generator"
        if architecture == GENERATOR
        or (architecture == DISCRIMINATOR and architecture not in form.classes)  # of a BERT, a masked language model
        else "discriminator"
    )
    return Stored(role, folder, form, config, folder, weights, values)


def family(model: Stored, generator: str | Path | None = None) -> tuple[Stored, ...]:
    """Returns a model; before a discriminator its generator, by default the one inside its folder, if there is one.

    Raises:
        ConfigError: the generator cannot be read, or does not predict tokens.
    """
    inside = model.folder / "generator"
    if model.role == "generator" or not (generator or inside.is_dir()):
        return (model,)
    first = read_stored(generator or inside)
    if first.role != "generator":
        raise ConfigError(
            f"generator: {first.folder} is not a masked language model with the vocabulary of {model.folder}; name one"
        )
    return (first, model)


def write(
    folder: Path,
    architecture: str,
    config: EncoderSizes,
    weights: Mapping[str, Tensor],
    special: Mapping[str, int],
    settings: Mapping[str, Any],
) -> Form:
    """Writes a model of this class: `config.json` with these `settings` added, `model.safetensors`, a generator's
    sampling head, and its code.

    `architecture` and `weights` are ELECTRA's; `special` holds the ids of special tokens. Returns the form that it has.
    """
    form = form_of(config, architecture)
    folder.mkdir(parents=True, exist_ok=True)
    stock = form.theirs({name: weight for name, weight in weights.items() if not of_sampler(name)}, config)
    description = {
        "architectures": [form.classes[architecture]],
        "model_type": form.model_type,
        **form.describe(config, architecture, stock, special),
        **settings,
    }
    (folder / "config.json").write_text(json.dumps(description, indent=2) + "\n")
    save_weights(stock, folder / "model.safetensors")
    names = {ours: theirs for theirs, ours in SAMPLER_NAMES.items()}
    if head := {renamed(name, names): weight for name, weight in weights.items() if of_sampler(name)}:
        head.setdefault("generator_lm_head.bias", torch.zeros(config.vocab_size))
        encoder = form.theirs(of_encoder(weights), config)
        whole = form.theirs(of_encoder(weights) | head, config).items()
        save_weights({name: weight for name, weight in whole if name not in encoder}, folder / SAMPLING_HEAD)
    for name in form.code:
        (folder / name).write_bytes(Path(__file__).with_name(name).read_bytes())
    return form


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: weight.contiguous() for name, weight in weights.items()}, path, {"format": "pt"})
    take_mode(path, path.with_name("config.json"))  # safetensors writes for the owner alone
