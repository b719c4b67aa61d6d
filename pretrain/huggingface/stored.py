"""A stored model: read from a folder, the hub or a run's checkpoint, built as modules, written as a folder."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor, nn

from data_prep.tokens import read_folder
from electra_sampler.foundation.config import ConfigError, StrictConfig
from pretrain.huggingface.folders import fill, find_folder, read_config, read_weights
from pretrain.huggingface.forms import GENERATOR, WORDS, Form, form_named, form_of, renamed
from pretrain.model import ops
from pretrain.model.encoder import Encoder
from pretrain.model.sizes import EncoderSizes

Role = Literal["generator", "discriminator", "sampling head"]
"""A model that predicts masked tokens; any other; or a run's sampling head, which is no model of its own."""
HEADS: dict[Role, tuple[str, ...]] = {
    "generator": ("generator_predictions", "generator_lm_head"),
    "discriminator": ("discriminator_predictions",),
    "sampling head": ("sampler_transform", "sampler_scores"),
}
"""Modules of a role's pre-training head. Other samplers than the paper's may have a head with other modules."""
SAMPLING = "replacement_sampling"
"""Key of `Sampling` in a discriminator's `config.json`."""
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
    """Configuration of its encoder; of a sampling head, of the generator's."""
    tokenizer: Path
    weights: Callable[[], dict[str, Tensor]]
    settings: Mapping[str, Any] = {}
    """The settings in its `config.json` besides the encoder's."""

    @property
    def has_tokenizer(self) -> bool:
        return any((self.tokenizer / name).is_file() for name in ("tokenizer.json", "vocab.txt"))

    def encoder(self, *, random_weights: bool = False, **changes: Any) -> Encoder:
        """Builds its encoder, with `changes` to its configuration, such as dropout.

        With `random_weights`, the weights are not read, and the encoder keeps its random initialization.

        Raises:
            ConfigError: the weights do not fit the configuration.
        """
        encoder = self.form.parts.encoder(dataclasses.replace(self.config, **changes))
        if not random_weights:
            own = {name: weight for name, weight in self.weights().items() if name.startswith("electra.")}
            fill(nn.ModuleDict({"electra": encoder}), own, self.folder)
        return encoder

    def build(self, random_weights: bool = False, words: nn.Embedding | None = None) -> nn.ModuleDict:
        """Builds its encoder, `electra`, and the modules of its pre-training head; for a sampling head, whose output
        matrix is the generator's `words`, only these.

        Raises:
            ConfigError: it has no such head, or the weights do not fit the configuration.
        """
        model, weights, (first, *scores) = nn.ModuleDict(), self.weights(), HEADS[self.role]
        if words is None:
            if WORDS not in weights or not any(name.startswith(f"{first}.") for name in weights):
                raise ConfigError(
                    f"models: {self.folder} has no word embeddings or no pre-training head; expected an"
                    " exported pre-trained model, not a fine-tuned one"
                )
            model["electra"] = encoder = self.form.parts.encoder(self.config)
            words = encoder.embeddings.word_embeddings
        model[first] = (self.form.parts.transform if scores else self.form.parts.detector)(self.config)
        for name in scores:
            model[name] = matrix = ops.Linear(words.weight.shape[1], self.config.vocab_size)
            nn.init.zeros_(matrix.bias)
            weights.setdefault(f"{name}.bias", matrix.bias)
            if f"{name}.weight" not in weights:
                matrix.weight, weights[f"{name}.weight"] = words.weight, weights.get(WORDS, words.weight)
        if not random_weights:
            fill(model, weights, self.folder)
        return model


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
    role: Role = "generator" if architecture == GENERATOR else "discriminator"
    return Stored(role, folder, form, config, folder, lambda: form.ours(read_weights(folder), architecture), values)


def require_readable(tokenizer: Path) -> None:
    """Refuses a tokenizer's folder whose ids data preparation would not give.

    Raises:
        ConfigError: see `read_folder`.
    """
    read_folder(tokenizer)


def family(model: Stored, generator: Stored | None = None) -> tuple[Stored, ...]:
    """Returns a model; before a discriminator its generator, by default the one inside its folder, and after it their
    sampling head, as far as there are any.

    Raises:
        ConfigError: the generator does not predict tokens.
    """
    inside = model.folder / "generator"
    if model.role == "discriminator" and generator is None and inside.is_dir():
        generator = read_stored(inside)
    if model.role == "generator" or generator is None:
        return (model,)
    if generator.role != "generator":
        raise ConfigError(
            f"generator: {generator.folder} is not a masked language model with the vocabulary of {model.folder}; name"
            " one"
        )
    names = dict(zip(HEADS["generator"], HEADS["sampling head"], strict=True))

    def weights(folder: Path = generator.folder, form: Form = generator.form) -> dict[str, Tensor]:
        own = form.ours(read_weights(folder, SAMPLING_HEAD), GENERATOR)
        return {renamed(name, names): weight for name, weight in own.items()}

    head = generator._replace(role="sampling head", weights=weights, settings=model.settings)
    return (generator, model, head) if (generator.folder / SAMPLING_HEAD).is_file() else (generator, model)


def write(
    folder: Path,
    architecture: str,
    config: EncoderSizes,
    weights: Mapping[str, Tensor],
    special: Mapping[str, int],
    settings: Mapping[str, Any],
) -> Form:
    """Writes a model of this class: `config.json` with these `settings` added, `model.safetensors`, and its code.

    `architecture` and `weights` are ELECTRA's; `special` holds the ids of special tokens. Returns the form that it has.
    """
    form = form_of(config, architecture)
    folder.mkdir(parents=True, exist_ok=True)
    stock = form.theirs(weights, config)
    description = {
        "architectures": [form.classes[architecture]],
        "model_type": form.model_type,
        **form.describe(config, architecture, stock, special),
        **settings,
    }
    (folder / "config.json").write_text(json.dumps(description, indent=2) + "\n")
    save_weights(stock, folder / "model.safetensors")
    for name in form.code:
        (folder / name).write_bytes(Path(__file__).with_name(name).read_bytes())
    return form


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: weight.contiguous() for name, weight in weights.items()}, path, {"format": "pt"})
