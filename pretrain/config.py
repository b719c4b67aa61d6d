"""What a pre-training run is: model, objective, optimization and bookkeeping, each a strict frozen configuration.

The numbers of the paper live in `presets.py`; speed and memory live in `ds_configs/*.json`.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from data_prep.config import MOST, ConfigError, StrictConfig, shown
from pretrain.encoder import EncoderConfig
from pretrain.losses import Gamma
from pretrain.optim import OptimConfig

Width = Annotated[int, Field(gt=0, le=2**17)]
"""Of a matrix: twice the widest dense model published (PaLM's feed-forward, 73,728)."""
Count = Annotated[int, Field(gt=0, le=MOST)]


class ModelConfig(StrictConfig):
    """Sizes of the discriminator; the generator follows from them and its width."""

    layers: int = Field(gt=0, le=1024)
    """Transformer layers, of both encoders; the deepest that was ever trained has 1,000 (DeepNet)."""
    hidden_size: Width
    heads: Width
    """Attention heads of the discriminator; the generator keeps its head size."""
    intermediate_size: Width
    """Width of the feed-forward layer."""
    embedding_size: Width
    generator_hidden_size: Width
    """Width of the generator: 1/4 (small) or 1/3 (base) of the discriminator's."""
    max_positions: Width = 512
    """Longest sequence, in word pieces (google-research/electra)."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Not in the paper; google-research/electra."""
    attention_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Not in the paper; google-research/electra."""
    initializer_range: float = Field(default=0.02, ge=1e-6, le=1)
    """Deviation of the initial matrices (google-research/electra); narrow models learn sooner near 1/sqrt(width)."""
    relative_position: bool = True
    """T5's relative position bias (paper section 4.1)."""
    relative_bias_init: Literal["t5", "local"] = "t5"
    """`local` for runs too small to leave the unigram plateau by themselves."""

    @model_validator(mode="after")
    def _heads_divide_widths(self) -> "ModelConfig":
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size: got {self.hidden_size}, expected a multiple of heads ({self.heads})")
        head_size = self.hidden_size // self.heads
        if self.generator_hidden_size >= head_size and self.generator_hidden_size % head_size:
            raise ValueError(
                f"generator_hidden_size: got {self.generator_hidden_size}, expected a multiple of {head_size},"
                " the head size (hidden_size / heads)"
            )
        if self.intermediate_size * self.generator_hidden_size < self.hidden_size:
            raise ValueError(
                f"intermediate_size: got {self.intermediate_size}, expected at least"
                f" {math.ceil(self.hidden_size / self.generator_hidden_size)}: the generator's shrinks with its width,"
                f" from {self.hidden_size} to {self.generator_hidden_size}, and would be 0"
            )
        return self

    def discriminator(self, vocab_size: int) -> EncoderConfig:
        return self._encoder(vocab_size, self.hidden_size, self.heads, self.intermediate_size)

    def generator(self, vocab_size: int) -> EncoderConfig:
        """Same depth and head size; heads and feed-forward shrink with the width (as google-research/electra)."""
        width = self.generator_hidden_size
        heads = max(1, width * self.heads // self.hidden_size)
        return self._encoder(vocab_size, width, heads, self.intermediate_size * width // self.hidden_size)

    def _encoder(self, vocab_size: int, hidden_size: int, heads: int, intermediate_size: int) -> EncoderConfig:
        return EncoderConfig(
            vocab_size=vocab_size,
            embedding_size=self.embedding_size,
            hidden_size=hidden_size,
            num_hidden_layers=self.layers,
            num_attention_heads=heads,
            intermediate_size=intermediate_size,
            max_position_embeddings=self.max_positions,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.attention_dropout,
            initializer_range=self.initializer_range,
            relative_position=self.relative_position,
            relative_bias_init=self.relative_bias_init,
        )


LARGEST_GAMMA = 100.0
"""Beyond it (1 - p)^gamma is 0 in fp32 wherever the generator is more than 0.6 sure: it would learn nothing more."""
ObjectiveName = Literal["hp_loss", "hp_dist", "electra", "mlm"]


class ObjectiveConfig(StrictConfig):
    """How replacements are sampled and how the losses are weighed.

    `mlm` is a baseline without replacements: an encoder of the discriminator's size learns L_G alone.
    """

    name: ObjectiveName = "hp_loss"
    gamma: Gamma = 1.0
    """Focal exponent: 0, a positive number to 100, or `piecewise` (paper, best: 1)."""
    lambda1: float = Field(default=5.0, ge=0, le=1e6)
    """Weight of the sampling head's loss (paper: 5 for HP_Loss, 1 for HP_Dist); beside 1e6 fp32 rounds L_G away."""
    lambda2: float = Field(default=50.0, ge=0, le=1e6)
    """Weight of the discriminator's loss (paper and ELECTRA: 50)."""
    temperature: float = Field(default=1.0, gt=0)
    """Of the sampling distribution: p_G^(1/T) before it is reweighed, p_S^(1/T) for HP_Dist (ELECTRA: 1)."""
    forbid_original: bool = False
    """The original token is never sampled (google-research/electra `disallow_correct`)."""
    importance_weighting: bool = False
    """L_D of a masked position is weighed by p_G/p_S of its token: the estimator of the paper's proposition.

    Its expectation is the masked position's loss under p_G exactly where a sequence has one mask; with several it is
    approximate, because the loss also depends on what was drawn at the other masks. Unmasked positions weigh 1.
    """
    detach_sampler_input: bool = False
    """L_S teaches the sampling head and its bias alone, not the generator and the embeddings (the paper is silent)."""
    mixture: float = Field(default=0.0, ge=0, lt=1)
    """HP_Dist samples from (1 - mixture) p_S + mixture p_G, which bounds p_G over the proposal by 1/mixture."""
    ratio_clip: float | None = Field(default=None, gt=0, le=1e30)
    """HP_Dist: largest p_G over proposal in L_S; it moves the optimum away from the paper's p_S."""
    mask_keep_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of masked positions that keep their token as the generator's input (google-research/electra: 0.15)."""

    @model_validator(mode="after")
    def _switches_fit(self) -> "ObjectiveConfig":
        problems = [problem for wrong, problem in self._mistakes() if wrong]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _mistakes(self) -> Iterator[tuple[bool, str]]:
        yield (
            self.gamma != "piecewise" and not 0 <= self.gamma <= LARGEST_GAMMA,
            f"gamma: got {self.gamma}, expected 0, a positive number to {LARGEST_GAMMA:g} or 'piecewise'",
        )
        yield (
            self.importance_weighting and self.forbid_original,
            "importance_weighting: true with forbid_original, which samples no original to weigh; switch one off",
        )
        for switch, names in SWITCHES_OF.items():
            value = getattr(self, switch)
            yield (
                value != ObjectiveConfig.model_fields[switch].default and self.name not in names,
                f"{switch}: got {value}, which {self.name} has no use for; leave it out or choose {' or '.join(names)}",
            )

    @property
    def learns_to_sample(self) -> bool:
        return self.name in ("hp_loss", "hp_dist")


SWITCHES_OF: dict[str, tuple[ObjectiveName, ...]] = {
    "temperature": ("hp_loss", "hp_dist", "electra"),
    "forbid_original": ("hp_loss", "hp_dist", "electra"),
    "importance_weighting": ("hp_loss", "hp_dist", "electra"),
    "detach_sampler_input": ("hp_loss", "hp_dist"),
    "mixture": ("hp_dist",),
    "ratio_clip": ("hp_dist",),
}
"""The objectives that a switch means something to; any other refuses it."""


class RunConfig(StrictConfig):
    """Everything that decides a run's mathematics, and how often it reports and saves."""

    model: ModelConfig
    objective: ObjectiveConfig
    optim: OptimConfig
    batch_size: int = Field(gt=0, le=2**20)
    """Sequences an optimizer step, over all ranks and micro-batches; each rank holds the places of all of them."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of initial weights, order, sampling and dropout."""
    log_every: Count = 100
    """Steps between log lines."""
    histogram_every: Count = 1_000
    """Steps between histograms and decoded examples in the log."""
    evaluate_every: Count = 10_000
    """Steps between evaluations on the held-out part."""
    evaluate_sequences: Count = 512
    """Held-out sequences an evaluation during training reads."""
    checkpoint_every: Count = 5_000
    """Steps between checkpoints."""
    keep_checkpoints: Count = 3
    """Newest checkpoints kept."""
    keep_every: int = Field(default=0, ge=0, le=MOST)
    """Steps between checkpoints that are kept for good; 0 keeps none but the newest."""

    @model_validator(mode="after")
    def _kept_checkpoints_are_written(self) -> "RunConfig":
        if self.keep_every % self.checkpoint_every:
            raise ValueError(
                f"keep_every: got {self.keep_every}, expected 0 or a multiple of checkpoint_every"
                f" ({self.checkpoint_every}): no other step has a checkpoint to keep"
            )
        return self

    @model_validator(mode="after")
    def _samples_can_be_counted(self) -> "RunConfig":
        if self.optim.steps * self.batch_size > MOST:
            raise ValueError(
                f"optim.steps: got {self.optim.steps} of batch_size {self.batch_size} sequences, expected fewer than"
                f" {MOST} sequences in all: a larger number is not exact"
            )
        return self


def with_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """`config` with `key.path=value` applied; values are JSON where they parse as JSON, else strings.

    Raises:
        ConfigError: an override without `=`, an unknown key, or a value its field refuses; all of them at once.
    """
    values = config.model_dump()
    problems = [problem for override in overrides if (problem := _apply(values, override))]
    if problems:
        raise ConfigError(*problems)
    return RunConfig.from_values(values, "--set")


def _apply(values: dict[str, Any], override: str) -> str | None:
    """Sets one override in place; returns the problem if there is one."""
    path, equals, text = override.partition("=")
    if not equals:
        return f"--set: got {shown(override)}, expected key=value, for example optim.lr=2e-4"
    if path == "objective.name":
        option = f"--objective {shown(text)[1:-1]}"
        return f"--set: got {shown(override)}, which would keep the weights of another objective; use {option}"
    *parents, key = path.split(".")
    section: Any = values
    for part in parents:
        section = section.get(part) if isinstance(section, dict) else None
    if problem := _no_value_of(section, path):
        return f"--set: got {problem}"
    try:
        section[key] = json.loads(text)
    except (ValueError, RecursionError):
        section[key] = text
    return None


def _no_value_of(section: Any, path: str) -> str | None:
    """What is wrong with a path whose last part should be a value of `section`, if anything is."""
    parent, _, key = path.rpartition(".")
    if not isinstance(section, dict):
        whole = shown(parent)[1:-1]
        return f"unknown key {shown(path)}; {whole} is no section, so set {whole} as a whole or a key of another"
    if key not in section:
        return f"unknown key {shown(path)}; expected one of {', '.join(section)}"
    if isinstance(section[key], dict):
        return f"the section {path!r}; set its keys one by one, such as {path}.{next(iter(section[key]))}"
    return None
