"""Starting from trained models: a generator, a discriminator or both, or the encoder of a BERT or MPNet.

The sizes of the run's model are theirs. Parts that they lack start fresh, and one line names these; a fresh sampling
head starts, by default, so that p_S = p_G. Added tokens and positions extend the tables.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers.models import WordPiece as Pieces
from torch import Tensor, nn

from data_prep.tokens import open_tokenizer
from foundation.config import ConfigError
from pretrain.config import RunConfig
from pretrain.huggingface.folders import fill, find_folder, read_config, read_encoder_config, read_weights
from pretrain.huggingface.relatives import RELATIVES, electra_settings, electra_weights
from pretrain.method.objective import Objective
from pretrain.method.registry import objective_class
from pretrain.model.config import ModelConfig
from pretrain.model.encoder import EncoderConfig

WORDS = "electra.embeddings.word_embeddings.weight"
OUTPUT_MATRIX = "generator_lm_head.weight"
TRAINING_ONLY = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "relative_bias_init")
"""What the run decides, not the pair: how it trains, and how it would have started."""
EXTENSIBLE = ("vocab_size", "max_position_embeddings")
"""The run's may be larger: its tables are then extended."""
PROBE = "\u00c9cole \u4e2d\u6587"
"""A text that each choice of a normalizer changes: `École` and two Chinese characters."""
PER_TOKEN = ("word_embeddings.weight", "generator_lm_head.bias", "sampler_scores.bias")
"""Parameters with a row per token."""


class Source(NamedTuple):
    """A trained model: its weights are read when asked for, under Hugging Face's names."""

    folder: Path
    config: EncoderConfig
    tokenizer: Path
    weights: Callable[[], dict[str, Tensor]]

    @property
    def has_tokenizer(self) -> bool:
        return any((self.tokenizer / name).is_file() for name in ("tokenizer.json", "vocab.txt"))


class Sources(NamedTuple):
    """The models that a run starts from; at least one of the two."""

    generator: Source | None
    discriminator: Source | None
    sampling_head: Callable[[], dict[str, Tensor]] = dict
    """Of a run: the weights of its sampling head, if it has one."""
    objective: str = ""
    """That run's, which decides what the sampling head means."""


def find_models(names: Sequence[str]) -> Sources:
    """GENERATOR DISCRIMINATOR, an exported folder with its generator inside, or one model, whose class decides which of
    the two it is; local folders, or names on the hub.

    Raises:
        ConfigError: another number of names, no such model, or one that computes what is not computed here.
    """
    if len(names) > 2:
        raise ConfigError(
            f"init_from: got {len(names)} names, expected GENERATOR DISCRIMINATOR, one model, or a run folder"
        )
    last = find_folder(names[-1])
    if len(names) == 2:
        first = find_folder(names[0])
        if not is_generator(first) or is_generator(last):
            raise ConfigError(
                f"init_from: got {names[0]} {names[1]}, expected GENERATOR DISCRIMINATOR: an ElectraForMaskedLM, then a"
                " model of another class"
            )
        return Sources(read_generator(first), read_discriminator(last))
    if is_generator(last):
        return Sources(read_generator(last), None)
    inside = last / "generator"
    return Sources(read_generator(inside) if inside.is_dir() else None, read_discriminator(last))


def is_generator(folder: Path) -> bool:
    """True if a folder holds an `ElectraForMaskedLM`; the encoder of a masked BERT serves the discriminator."""
    values = read_config(folder)
    return values.get("model_type") not in RELATIVES and "ForMaskedLM" in str(values.get("architectures"))


def read_generator(folder: Path) -> Source:
    """The `ElectraForMaskedLM` in a folder.

    Raises:
        ConfigError: its output matrix is not its word embeddings, or it computes what is not computed here.
    """
    if not read_config(find_folder(folder)).get("tie_word_embeddings", True):
        raise ConfigError(
            f"init_from: {folder} has tie_word_embeddings False, expected True: the output matrix is the word"
            " embeddings here; name a generator trained so"
        )

    def weights() -> dict[str, Tensor]:
        found = read_weights(folder)
        output_matrix = found.pop(OUTPUT_MATRIX, None)
        if output_matrix is not None and WORDS in found and not torch.equal(output_matrix, found[WORDS]):
            raise ConfigError(
                f"init_from: {OUTPUT_MATRIX} of {folder} differs from its word embeddings, which are the output"
                " matrix here; name a generator trained so"
            )
        return found

    return Source(folder, read_encoder_config(folder), folder, weights)


def read_discriminator(folder: Path) -> Source:
    """The `ElectraForPreTraining` in a folder, or the encoder of an `ElectraModel`, a BERT or an MPNet.

    Raises:
        ConfigError: it is none of these, or computes what is not computed here.
    """
    values = read_config(folder)

    def weights() -> dict[str, Tensor]:
        found = read_weights(folder)
        if values["model_type"] in RELATIVES:
            return electra_weights(found, values["model_type"])
        bare = not any(name.startswith("electra.") for name in found)  # an `ElectraModel`
        return {f"electra.{name}" if bare else name: weight for name, weight in found.items()}

    return Source(folder, read_encoder_config(folder, electra_settings(values)), folder, weights)


def with_sizes_of(run: RunConfig, sources: Sources) -> RunConfig:
    """`run` with a model of the sources' sizes. If one of the two models is missing, its width has the preset's
    proportion to the other's, in whole heads.

    Raises:
        ConfigError: two models for an objective that trains one, or sizes that make no model here.
    """
    generator, discriminator = (source and source.config for source in sources[:2])
    known = discriminator or generator
    assert known is not None
    if "generator" not in objective_class(run.objective.name).exports:
        if generator and discriminator:
            raise ConfigError(
                f"init_from: the objective {run.objective.name} trains one model, got a generator and a discriminator;"
                " name one of them, or choose another objective"
            )
        generator, discriminator = None, known
    head_size = known.hidden_size // known.num_attention_heads
    heads = known.num_attention_heads
    if discriminator is None:
        heads = max(1, round(heads * run.model.hidden_size / run.model.generator_hidden_size))
    width = head_size * heads
    share = run.model.generator_hidden_size / run.model.hidden_size
    sizes = {
        "layers": known.num_hidden_layers,
        "hidden_size": width,
        "heads": heads,
        "intermediate_size": known.intermediate_size * width // known.hidden_size,
        "embedding_size": known.embedding_size,
        "generator_hidden_size": generator.hidden_size if generator else head_size * max(1, round(heads * share)),
        "max_positions": known.max_position_embeddings,
        "relative_position": known.relative_position,
        "layer_norm_eps": known.layer_norm_eps,
    }
    name = next(source.folder for source in (sources.discriminator, sources.generator) if source)
    model = ModelConfig.from_values(run.model.model_dump() | sizes, f"init_from: {name}")
    return run.model_copy(update={"model": model})


def require_fit(sources: Sources, run: RunConfig, vocab_size: int, tokenizer: Path) -> None:
    """Refuses sources that are no generator and discriminator of `run`'s model, or whose tokens are not the first of
    `tokenizer`.

    Raises:
        ConfigError: each field that differs, or the vocabulary.
    """
    encoders = objective_class(run.objective.name).encoders(run.model, vocab_size)
    expected = (encoders[0], encoders[-1])  # the same if the objective trains one model
    fits = [(source, own) for source, own in zip(sources[:2], expected, strict=True) if source is not None]
    problems = [
        f"init_from: {source.folder} has {field} {theirs}, expected {ours} with this configuration and data"
        for source, own in fits
        for field, ours in vars(own).items()
        if (theirs := getattr(source.config, field)) != ours
        and field not in TRAINING_ONLY
        and not (field in EXTENSIBLE and theirs < ours and (source.has_tokenizer or field != "vocab_size"))
    ]
    if problems:
        raise ConfigError(*problems)
    for source, _ in fits:
        if source.has_tokenizer:
            tokens = open_tokenizer(str(tokenizer)).tokens[: source.config.vocab_size]
            if open_tokenizer(str(source.tokenizer)).tokens != tokens:
                raise ConfigError(
                    f"init_from: the vocabulary of {source.folder} is not the data's, nor its beginning; build the"
                    " shards with it as --vocab"
                )


def normalized_otherwise(sources: Sources, tokenizer: Path) -> Iterator[Path]:
    """Yields the folders of the sources whose tokenizer treats case, accents or Chinese unlike the data's."""
    ours = open_tokenizer(str(tokenizer)).normalized(PROBE)
    for source in filter(None, sources[:2]):
        if source.has_tokenizer and open_tokenizer(str(source.tokenizer)).normalized(PROBE) != ours:
            yield source.folder


def load_sources(model: Objective, sources: Sources, tokenizer: Path) -> None:
    """Gives the model the sources' weights, starts its other parts, and names these and the number of new tokens.

    Both encoders start with the embeddings of a single source; with `gdes`, Delta is their difference. `tokenizer` is
    the data's.

    Raises:
        ConfigError: a weight is missing, has another shape, or has no place in the model.
    """
    loaded = load_parts(model, sources, tokenizer)
    if not any(name.startswith("sampler_") for name in loaded):
        model.start()
    if fresh := [name for name, _ in model.named_children() if name not in loaded]:
        print(f"init_from: these parts start fresh, except for shared embeddings: {', '.join(fresh)}")
    encoder: Any = model.exported(".")["electra"]
    tokens = encoder.config.vocab_size
    if new := tokens - min(source.config.vocab_size for source in sources[:2] if source):
        print(f"init_from: {new:,} of {tokens:,} tokens are new to the model; each starts as the mean of its pieces")


def load_parts(model: Objective, sources: Sources, tokenizer: Path) -> list[str]:
    """Copies the sources' weights into the model, bit for bit, and returns the names of the parts that have any; says
    that the discriminator's embeddings are used for both encoders where the model shares them and the sources do not.

    Raises:
        ConfigError: as `load_sources`.
    """
    loaded: list[str] = []
    embeddings: list[dict[str, Tensor]] = []
    generator = "generator" if "generator" in model.exports else "."
    for place, source in ((generator, sources.generator), (".", sources.discriminator)):  # the last decides
        if source is None:
            continue
        modules = model.exported(place)
        weights = extended(source.weights(), modules["electra"].config, source, tokenizer)
        if place == generator and source is sources.discriminator:  # its head predicts no words
            weights = {name: weight for name, weight in weights.items() if name.startswith("electra.")}
        if place == "." and all(name.startswith("electra.") for name in weights):
            modules = nn.ModuleDict({"electra": modules["electra"]})
        fill(modules, weights, source.folder)
        loaded += model.exports[place][1 : 1 + len(modules)]
        prefix = "electra.embeddings."
        embeddings.append({name[len(prefix) :]: weights[name] for name in weights if name.startswith(prefix)})
    if "generator" in model.exports:
        encoders: list[Any] = [model.get_submodule(name) for name in ("generator", "discriminator")]
        for encoder, weights in zip(encoders, (embeddings[0], embeddings[-1]), strict=True):
            encoder.embeddings.start_from(weights)
        differ = any(not torch.equal(one, embeddings[-1][name]) for name, one in embeddings[0].items())
        if differ and encoders[0].embeddings is encoders[1].embeddings:
            assert sources.generator and sources.discriminator
            print(
                f"embeddings of {sources.generator.folder} and {sources.discriminator.folder} differ: the"
                " discriminator's are used for both"
            )
    head = sources.sampling_head() if sources.objective == model.objective.name else {}
    names = [name for name, _ in model.named_children() if name.startswith("sampler_")]
    own = nn.ModuleDict({name: getattr(model, name) for name in names})
    if head and sources.generator and head.keys() == own.state_dict().keys():
        fill(
            own, extended(head, model.exported("generator")["electra"].config, sources.generator, tokenizer), tokenizer
        )
        loaded += names
    return loaded


def extended(weights: Mapping[str, Tensor], config: Any, source: Source, tokenizer: Path) -> dict[str, Tensor]:
    """The weights with rows for the positions and tokens of `config` that the source lacks.

    Positions repeat from the first. A new token is the mean of its pieces under the source's tokenizer. A table of
    another length than its configuration's is left for `fill` to refuse.
    """
    positions, known = config.max_position_embeddings, source.config.max_position_embeddings
    size = source.config.vocab_size
    pieces: list[list[int]] = []
    if size < config.vocab_size:
        tokens = open_tokenizer(str(tokenizer)).tokens
        vocabulary = {token: number for number, token in enumerate(tokens[:size])}
        split = Pieces(vocabulary, unk_token="[UNK]", continuing_subword_prefix="##").tokenize
        pieces = [[piece.id for piece in split(token)] for token in tokens[size:]]
    longer = dict(weights)
    for name, weight in weights.items():
        if name.endswith("position_embeddings.weight") and weight.shape[:1] == (known,):
            longer[name] = weight.repeat(-(-positions // known), 1)[:positions]
        elif pieces and name.endswith(PER_TOKEN) and weight.shape[:1] == (size,):
            rows = torch.stack([weight[ids].float().mean(0) for ids in pieces])
            longer[name] = torch.cat([weight, rows.to(weight.dtype)])
    return longer
