"""Starting from trained models: a generator, a discriminator or both, or the encoder of a BERT or MPNet.

The run's model takes its sizes from them. Parts that they lack start fresh, and one printed line names these parts; by
default, a fresh sampling head starts with p_S = p_G. Added tokens and positions extend the tables.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data_prep.tokens import open_tokenizer
from electra_sampler.foundation.config import ConfigError
from pretrain.config import RunConfig
from pretrain.huggingface.folders import fill, has_tokenizer
from pretrain.huggingface.forms import OUTPUT_MATRIX, WORDS, of_encoder
from pretrain.huggingface.stored import HEADS, SAMPLING, Stored, family, of_sampler, read_stored
from pretrain.method.objective import Objective
from pretrain.method.registry import objective_class

EMBEDDINGS = "electra.embeddings."
FREE = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "relative_bias_init")
"""Dropout and initialization, the only fields of an encoder that a run does not take from the models."""
MAY_DIFFER = (*FREE, "global_theta", "local_theta")
"""Fields in which a run may differ from the models: also rotary bases, for longer sequences."""
PER_TOKEN = ("word_embeddings.weight", "generator_lm_head.bias", "sampler_scores.bias")
"""Ends of the names of parameters with a row per token."""


Donors = tuple[Stored, ...]
"""At least one donor, a generator first. Shared embeddings come from the last."""


def find_models(names: Sequence[str]) -> Donors:
    """Returns the models of these names: GENERATOR DISCRIMINATOR, an exported folder with its generator inside, or one
    model, whose class decides which of the two it is. Names are local folders, or names on the hub.

    Of a BERT, an MPNet or a ModernBERT that is not the first of two, only the encoder is used, as a discriminator's.

    Raises:
        ConfigError: more than two names, no such model, or a model with settings that this implementation lacks.
    """
    last = model = read_stored(names[-1])
    if model.role == "generator" and not model.form.predicts_alone:
        last = model._replace(role="discriminator", weights=lambda: of_encoder(model.weights()))
    if len(names) > 2 or (len(names) == 2 and last.role == "generator"):
        raise ConfigError(
            f"init_from: got {' '.join(names)}, expected GENERATOR DISCRIMINATOR: an ElectraForMaskedLM, then a model"
            " of another class; or one model, or a run folder"
        )
    generator, *others = family(last, *names[:-1])
    if generator.role != "generator":
        return (generator,)
    if generator.settings.get("tie_word_embeddings", True):
        return (generator._replace(weights=partial(without_matrix, generator)), *others)
    if not generator.form.folds:
        raise ConfigError(
            f"init_from: {generator.folder} has tie_word_embeddings False, expected True: the output matrix is the word"
            " embeddings here; name a generator trained with tied embeddings"
        )
    return unfolded(generator, *others)


def without_matrix(generator: Stored) -> dict[str, Tensor]:
    """Returns a generator's weights without its output matrix, which must be its word embeddings."""
    weights = generator.weights()
    matrix = weights.pop(OUTPUT_MATRIX, None)
    if matrix is not None and WORDS in weights and not torch.equal(matrix, weights[WORDS]):
        raise ConfigError(
            f"init_from: {OUTPUT_MATRIX} of {generator.folder} differs from its word embeddings, which are the output"
            " matrix here; name a generator trained with tied embeddings"
        )
    return weights


def unfolded(generator: Stored, discriminator: Stored) -> Donors:
    """Returns the donors with the projections that an export multiplied into the tables of a narrow generator: the
    tables divided by the discriminator's word embeddings or, if it had its own, by a basis.
    """
    size = discriminator.config.embedding_size

    def weights() -> dict[str, Tensor]:
        own, words_VE = generator.weights(), discriminator.weights()[WORDS].double()
        names = {f"{scores}.weight": head for head, scores in HEADS["generator"] if f"{scores}.weight" in own}
        tables_VX = torch.cat([own[WORDS], *map(own.pop, names)], 1).double()
        factors_EX = torch.linalg.lstsq(words_VE, tables_VX).solution
        if (words_VE @ factors_EX - tables_VX).abs().max() > 1e-4 * tables_VX.abs().max():
            basis_VX, scale_X, rest_XX = torch.linalg.svd(tables_VX, full_matrices=False)
            rank = min(size, len(scale_X))
            words_VE = F.pad((basis_VX * scale_X)[:, :rank], (0, size - rank))
            factors_EX = F.pad(rest_XX[:rank], (0, 0, 0, size - rank))
        into_EH, *out_EH = factors_EX.float().split(generator.config.hidden_size, 1)
        own |= {WORDS: words_VE.float(), "electra.embeddings_project.weight": into_EH.T}
        return own | {
            f"{head}.embeddings_project.weight": out_EH for head, out_EH in zip(names.values(), out_EH, strict=True)
        }

    config = dataclasses.replace(generator.config, embedding_size=size)
    return generator._replace(config=config, weights=weights), discriminator


def with_sizes_of(run: RunConfig, donors: Donors) -> RunConfig:
    """Returns `run` with a model of the donors' sizes. If generator or discriminator is missing, its width is the
    other's times the preset's ratio, rounded to whole heads.

    Raises:
        ConfigError: two models for an objective that trains one, another kind of encoder, or invalid sizes.
    """
    first, known, preset = donors[0], donors[-1].config, run.model
    trains_one = "generator" not in objective_class(run.objective.name).exports
    if trains_one and len(donors) > 1:
        raise ConfigError(
            f"init_from: the objective {run.objective.name} trains one model, got a generator and a discriminator;"
            " name one of them, or choose another objective"
        )
    if stranger := next((donor for donor in donors if donor.form.parts is not preset.parts), None):
        raise ConfigError(
            f"init_from: the encoder of {stranger.folder} is of another kind than model.backbone {preset.backbone};"
            " choose a preset with its kind"
        )
    heads, wide, narrow = known.num_attention_heads, preset.hidden_size, preset.generator_hidden_size
    head_size = known.hidden_size // heads
    generator = first.config if first.role == "generator" and not trains_one else None
    width = head_size * max(1, round(heads * wide / narrow)) if generator is known else known.hidden_size
    other = head_size * max(1, round(heads * narrow / wide))
    sizes = {
        **{name: value for name, value in vars(known).items() if name in type(preset).model_fields.keys() - FREE},
        "layers": known.num_hidden_layers,
        "hidden_size": width,
        "heads": width // head_size,
        "intermediate_size": known.intermediate_size * width // known.hidden_size,
        "generator_hidden_size": generator.hidden_size if generator else other,
        "max_positions": known.max_position_embeddings,
    }
    model = type(preset).from_values(preset.model_dump() | sizes, f"init_from: {donors[-1].folder}")
    return run.model_copy(update={"model": model})


def misfits(donors: Donors, run: RunConfig, vocab_size: int, tokenizer: Path) -> Iterator[str]:
    """Yields a problem for each field in which the donors do not fit the generator and discriminator of `run`, or for
    each vocabulary with which that of `tokenizer` does not begin.
    """
    encoders = objective_class(run.objective.name).encoders(run.model, vocab_size)  # one if it trains one model
    fields = [
        f"init_from: {donor.folder} has {field} {theirs}, expected {ours} with this configuration and data"
        for donor in donors
        for field, ours in vars(encoders[-1 if donor.role == "discriminator" else 0]).items()
        if (theirs := getattr(donor.config, field)) != ours
        and field not in MAY_DIFFER
        and not (field == "vocab_size" and has_tokenizer(donor.tokenizer))  # its tokens are compared below
        and not (field == "max_position_embeddings" and theirs < ours)
    ]
    tokens = open_tokenizer(str(tokenizer)).tokens
    others = [
        f"init_from: the vocabulary of {donor.folder} is neither the data's nor its beginning; build the shards with"
        " that folder as --vocab"
        for donor in donors
        if has_tokenizer(donor.tokenizer)
        and open_tokenizer(str(donor.tokenizer)).tokens != tokens[: donor.config.vocab_size]
    ]
    yield from dict.fromkeys(fields or others)


def load_donors(model: Objective, donors: Donors, tokenizer: Path) -> None:
    """Loads the donors' weights into the model, starts its other parts, and prints the names of those parts and the
    number of new tokens.

    Both encoders start with the embeddings of a single donor; with `gdes`, Delta is their difference. `tokenizer` is
    the data's.

    Raises:
        ConfigError: a weight is missing, has another shape, or has no place in the model.
    """
    loaded = load_parts(model, donors, tokenizer)
    if not any(map(of_sampler, loaded)):
        model.start()
    if fresh := [name for name, _ in model.named_children() if name not in loaded]:
        print(f"init_from: these parts start fresh, except for shared embeddings: {', '.join(fresh)}")
    encoder: Any = model.exported(".")["electra"]
    tokens = encoder.config.vocab_size
    if (new := tokens - min(donor.config.vocab_size for donor in donors)) > 0:
        print(f"init_from: {new:,} of {tokens:,} tokens are new to the model; each starts as the mean of its pieces")


def load_parts(model: Objective, donors: Donors, tokenizer: Path) -> list[str]:
    """Copies the donors' weights into the model, bit for bit, and returns the names of the parts that received weights.

    If the model shares its embeddings and the donors' differ, prints that the discriminator's are used.

    Raises:
        ConfigError: see `load_donors`.
    """
    loaded: list[str] = []
    embeddings: list[dict[str, Tensor]] = []
    encoder: Any = model.exported(".")["electra"]
    sampler = nn.ModuleDict({name: part for name, part in model.named_children() if of_sampler(name)})
    same = donors[-1].settings.get(SAMPLING, {}).get("objective") == model.objective.name
    for donor in donors:
        weights = extended(donor.weights(), encoder.config, donor, tokenizer)
        head = {name: weights.pop(name) for name in [*filter(of_sampler, weights)]}
        place = donor.role if donor.role in model.exports else "."
        (_, *parts), modules = model.exports[place], model.exported(place)
        embeddings.append(
            {name.removeprefix(EMBEDDINGS): weight for name, weight in weights.items() if name.startswith(EMBEDDINGS)}
        )
        whole = of_encoder(weights)
        if HEADS[donor.role][0][0] not in modules or (place == "." and whole.keys() == weights.keys()):
            weights, parts, modules = whole, parts[:1], nn.ModuleDict({"electra": modules["electra"]})
        if same and head.keys() == sampler.state_dict().keys():
            fill(sampler, head, donor.folder)
            parts += sampler
        fill(modules, weights, donor.folder)
        loaded += parts
    if "generator" in model.exports:
        start_embeddings(model, donors, embeddings)
    return loaded


def start_embeddings(model: Objective, donors: Donors, embeddings: Sequence[Mapping[str, Tensor]]) -> None:
    """Sets the embeddings of both encoders to those of their donor or of a single one, by name."""
    encoders: list[Any] = [model.get_submodule(name) for name in ("generator", "discriminator")]
    for own, weights in zip(encoders, (embeddings[0], embeddings[-1]), strict=True):
        own.embeddings.start_from(weights)
    differ = any(not torch.equal(one, embeddings[-1][name]) for name, one in embeddings[0].items())
    if differ and encoders[0].embeddings is encoders[1].embeddings:
        print(f"embeddings of {donors[0].folder} and {donors[1].folder} differ: the discriminator's are used for both")


def extended(weights: Mapping[str, Tensor], config: Any, donor: Stored, tokenizer: Path) -> dict[str, Tensor]:
    """Returns the donor's weights with rows added for the positions and tokens of `config` that it lacks.

    Positions repeat from the first. A new token is the mean of its pieces under the donor's tokenizer. Rows beyond the
    tokenizer's tokens, which some models have, are left out. A table whose length contradicts the donor's configuration
    is left as it is; `fill` refuses it later.
    """
    positions, known = config.max_position_embeddings, donor.config.max_position_embeddings
    size = donor.config.vocab_size
    pieces: list[list[int]] = []
    if size < config.vocab_size:
        cut = open_tokenizer(str(donor.tokenizer)).pieces
        pieces = [cut(token) for token in open_tokenizer(str(tokenizer)).spelled[size:]]
    longer = dict(weights)
    for name, weight in weights.items():
        if name.endswith("position_embeddings.weight") and weight.shape[:1] == (known,):
            longer[name] = weight.repeat(-(-positions // known), 1)[:positions]
        elif name.endswith(PER_TOKEN) and weight.shape[:1] == (size,):
            rows = [weight[ids].float().mean(0, keepdim=True).to(weight.dtype) for ids in pieces]
            longer[name] = torch.cat([weight, *rows])[: config.vocab_size]
    return longer
