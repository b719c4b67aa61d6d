"""Starting from a trained pair: any Hugging Face ELECTRA generator and discriminator, or what `export.py` wrote.

The sizes of the run's model are the pair's; the sampling head starts as in any run, by default so that p_S = p_G.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from data_prep.tokens import open_tokenizer
from foundation.config import ConfigError
from pretrain.config import RunConfig
from pretrain.huggingface.folders import fill, find_folder, read_config, read_encoder_config, read_weights
from pretrain.method.objectives import objective_class
from pretrain.method.objectives.objective import Objective
from pretrain.model.config import ModelConfig
from pretrain.model.encoder import EncoderConfig

WORDS = "electra.embeddings.word_embeddings.weight"
OUTPUT_MATRIX = "generator_lm_head.weight"
TRAINING_ONLY = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "relative_bias_init")
"""What the run decides, not the pair: how it trains, and how it would have started."""


class Pair(NamedTuple):
    """Two local folders."""

    generator: Path
    discriminator: Path

    @property
    def configs(self) -> tuple[EncoderConfig, EncoderConfig]:
        return read_encoder_config(self.generator), read_encoder_config(self.discriminator)


def find_pair(names: Sequence[str]) -> Pair:
    """GENERATOR DISCRIMINATOR, or one exported folder with its generator inside; local, or names on the hub.

    Raises:
        ConfigError: another number of names, or no such model.
    """
    if len(names) > 2:
        raise ConfigError(f"init_from: got {len(names)} names, expected GENERATOR DISCRIMINATOR or one exported folder")
    discriminator = find_folder(names[-1])
    return Pair(find_folder(names[0]) if len(names) == 2 else find_folder(discriminator / "generator"), discriminator)


def with_sizes_of(run: RunConfig, pair: Pair) -> RunConfig:
    """`run` with a model of the pair's sizes.

    Raises:
        ConfigError: an objective without a pair, or sizes that make no model here.
    """
    if "generator" not in objective_class(run.objective.name).exports:
        raise ConfigError(f"init_from: the objective {run.objective.name} trains one model; choose another objective")
    generator, discriminator = pair.configs
    sizes = {
        "layers": discriminator.num_hidden_layers,
        "hidden_size": discriminator.hidden_size,
        "heads": discriminator.num_attention_heads,
        "intermediate_size": discriminator.intermediate_size,
        "embedding_size": discriminator.embedding_size,
        "generator_hidden_size": generator.hidden_size,
        "max_positions": discriminator.max_position_embeddings,
        "relative_position": discriminator.relative_position,
    }
    model = ModelConfig.from_values(run.model.model_dump() | sizes, f"init_from: {pair.discriminator}")
    return run.model_copy(update={"model": model})


def require_fit(pair: Pair, model: ModelConfig, vocab_size: int, tokenizer: Path) -> None:
    """Refuses a pair that is no generator and discriminator of `model` or has other tokens than `tokenizer`.

    Raises:
        ConfigError: each field that differs, or the vocabulary.
    """
    expected = (model.generator(vocab_size), model.discriminator(vocab_size))
    problems = [
        f"init_from: {folder} has {field} {getattr(theirs, field)}, expected {ours} with this configuration and data"
        for folder, theirs, own in zip(pair, pair.configs, expected, strict=True)
        for field, ours in vars(own).items()
        if getattr(theirs, field) != ours and field not in TRAINING_ONLY
    ]
    if not read_config(pair.generator).get("tie_word_embeddings", True):
        problems.append(
            f"init_from: {pair.generator} has tie_word_embeddings False, expected True: the output matrix is the word"
            " embeddings here; name a generator trained so"
        )
    if problems:
        raise ConfigError(*problems)
    has_tokenizer = any((pair.discriminator / name).is_file() for name in ("tokenizer.json", "vocab.txt"))
    if has_tokenizer and open_tokenizer(str(pair.discriminator)).tokens != open_tokenizer(str(tokenizer)).tokens:
        raise ConfigError(
            f"init_from: the vocabulary of {pair.discriminator} is not the data's; build the shards with it as --vocab"
        )


def load_pair(model: Objective, pair: Pair) -> None:
    """Gives the model the pair's weights, bit for bit; where their embeddings differ, says that the discriminator's
    are used.

    Raises:
        ConfigError: a weight is missing, has another shape, or has no place in the model.
    """
    generator, discriminator = read_weights(pair.generator), read_weights(pair.discriminator)
    output_matrix = generator.pop(OUTPUT_MATRIX, None)
    fill(model.exported("generator"), generator, pair.generator)
    fill(model.exported("."), discriminator, pair.discriminator)  # after the generator: it has the last word
    if output_matrix is not None and not torch.equal(output_matrix, generator[WORDS]):
        raise ConfigError(
            f"init_from: {OUTPUT_MATRIX} of {pair.generator} differs from its word embeddings, which are the output"
            " matrix here; name a generator trained so"
        )
    shared = [name for name in generator if name.startswith("electra.embeddings.")]
    if not all(torch.equal(generator[name], discriminator[name]) for name in shared):
        print(f"embeddings of {pair.generator} and {pair.discriminator} differ: the discriminator's are used for both")
    model.start()
