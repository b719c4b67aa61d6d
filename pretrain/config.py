"""The configuration of a pre-training run: model, objective, optimization and bookkeeping, each strict and frozen.

The paper's numbers are in `presets.py`; speed and memory are set in `ds_configs/*.json` and by
`--set deepspeed.KEY=VALUE`.
"""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from data_prep.manifest import Manifest
from data_prep.masking import COPIES_PER_SHUFFLE, MASK_RATE
from electra_sampler.foundation.config import (
    MOST,
    Count,
    StrictConfig,
    did_you_mean,
    one_of,
    parse_override,
    refuse,
    shown,
)
from pretrain.engine.optim import OptimConfig
from pretrain.method.electra import Detection
from pretrain.method.objective import ObjectiveConfig
from pretrain.method.registry import objective_class, objective_names
from pretrain.model.config import KINDS, ModelConfig


class RunConfig(StrictConfig):
    """Everything that determines a run's mathematics, plus how often it reports and saves."""

    model: SerializeAsAny[ModelConfig]
    """Sizes and switches of the encoders; `backbone` selects their kind."""
    objective: SerializeAsAny[ObjectiveConfig]
    """Settings of an objective; `name` selects its class."""
    optim: OptimConfig
    batch_size: int = Field(gt=0, le=2**20)
    """Sequences per optimizer step, over all ranks and micro-batches; each rank holds the indices of all of them."""
    mask_rate: float = Field(default=MASK_RATE, ge=0.001, le=0.9, multiple_of=0.001)
    """Share of a sequence's tokens that are masked in training; evaluations mask 15% (paper: 0.15)."""
    mask_choice: float = Field(default=0.0, ge=0, le=4)
    """Exponent g: takes the mask with the largest sum of a^g (a: a token's mean L_D); 0: takes the masks in turn."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of initial weights, data order, sampling and dropout."""
    deterministic: bool = True
    """On GPUs, only deterministic operations; false for the fastest. No effect on a CPU."""
    order: Literal["full", "windows"] = "full"
    """Order of each folder's sequences: permuted as a whole (`full`), or by shard, then in windows of shards."""
    window: Count = 16
    """Shards per window of order=windows."""
    log_every: Count = 100
    """Steps between log lines."""
    histogram_every: Count = 1_000
    """Steps between histograms and decoded examples in the log."""
    evaluate_every: Count = 10_000
    """Steps between evaluations on held-out text."""
    evaluate_sequences: Count = 512
    """Held-out sequences per evaluation during training."""
    checkpoint_every: Count = 5_000
    """Steps between checkpoints."""
    checkpoint_minutes: float = Field(default=10.0, gt=0, le=MOST)
    """Maximum minutes between checkpoints; a slow machine saves more often than every `checkpoint_every` steps."""
    keep_checkpoints: Count = 3
    """Number of newest checkpoints to keep."""
    keep_every: int = Field(default=0, ge=0, le=MOST)
    """Steps between checkpoints that are kept forever; 0 keeps only the newest."""

    @property
    def shards_per_window(self) -> int:
        """Shards per window of the order, 0 for a full permutation."""
        return self.window if self.order == "windows" else 0

    def misfits(self, manifest: Manifest, data: str) -> Iterator[str]:
        """Yields a problem if the sequences of `data` have too few masks, or are longer than the table of positions."""
        length, copies = manifest.seq_length, manifest.mask_copies
        together, needed = copies % COPIES_PER_SHUFFLE or COPIES_PER_SHUFFLE, ceil(round(self.mask_rate / MASK_RATE, 6))
        if needed > together:
            yield (
                f"mask_rate: got {self.mask_rate:g}, which takes {needed} mask copies of one shuffle, but of the"
                f" {copies} in {data} the last shuffle has {together}; use --set mask_rate={together * MASK_RATE:g} at"
                f" most, or build shards with --mask_copies {-(-copies // COPIES_PER_SHUFFLE) * COPIES_PER_SHUFFLE}"
            )
        if self.mask_choice and copies == 1:
            yield (
                f"mask_choice: got {self.mask_choice:g}, but {data} has one mask per sequence; leave it out, or build"
                " shards with --mask_copies 6"
            )
        if length > self.model.max_positions:
            yield (
                f"model.max_positions: got {self.model.max_positions}, but the sequences of {data} are {length} long;"
                f" use --set model.max_positions={length}"
            )

    def optimizer_misfits(self, before: "RunConfig") -> Iterator[str]:
        """Yields a problem if the optimizer's state of the run `before`, in --init_from, does not apply to this run."""
        if "gdes" in (self.model.embedding_sharing, before.model.embedding_sharing):
            yield (
                "keep_optimizer: got model.embedding_sharing gdes here or in the run of --init_from, expected es or"
                " nes in both: with gdes, embeddings are sums, and the moments of a sum do not apply to its parts;"
                " leave --keep_optimizer out"
            )
        if before.optim.muon and not self.optim.muon:
            yield (
                "keep_optimizer: got optim.muon true in the run of --init_from and false here, expected it in both:"
                " Muon keeps no second moment of the layers' matrices, by which AdamW would divide; add --set"
                " optim.muon=true, or leave --keep_optimizer out"
            )

    @field_validator("model", mode="before")
    @classmethod
    def _is_of_its_kind(cls, model: Any) -> Any:
        if isinstance(model, ModelConfig):
            return model
        kind = model.get("backbone") if isinstance(model, dict) else None
        if kind not in [*KINDS]:
            raise ValueError(f"got backbone {shown(kind)}, {one_of(kind, KINDS)}")
        return KINDS[kind].model_validate(model)

    @field_validator("objective", mode="before")
    @classmethod
    def _is_what_its_name_says(cls, objective: Any) -> Any:
        if isinstance(objective, ObjectiveConfig):
            return objective
        name = objective.get("name") if isinstance(objective, dict) else None
        if name not in objective_names():
            raise ValueError(f"got name {shown(name)}, {one_of(name, objective_names())}")
        own = objective_class(name).Config
        if unknown := objective.keys() - own.model_fields.keys():
            raise ValueError(f"unknown key {shown(min(unknown))}; {one_of(min(unknown), own.model_fields)}")
        return own.model_validate(objective)

    @model_validator(mode="after")
    def _embeddings_are_shared_by_two(self) -> "RunConfig":
        sharing, name = self.model.embedding_sharing, self.objective.name
        if sharing != "es" and len(objective_class(name).encoders(self.model, vocab_size=1)) == 1:
            raise ValueError(
                f"model.embedding_sharing: got {shown(sharing)} with objective {name}, which trains one encoder; leave"
                " it out, or choose another objective"
            )
        return self

    @model_validator(mode="after")
    def _masks_are_chosen_by_a_discriminator(self) -> "RunConfig":
        if self.mask_choice and not issubclass(objective_class(self.objective.name), Detection):
            raise ValueError(
                f"mask_choice: got {self.mask_choice:g} with objective {self.objective.name}, expected an"
                " objective with a discriminator: its loss chooses the masks; leave mask_choice out, or choose another"
                " objective"
            )
        return self


def with_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Returns `config` with each `key.path=value` applied; a value is read as JSON if it parses, else as a string.

    Raises:
        ConfigError: lists every override without `=`, unknown key and invalid value.
    """
    values = config.model_dump()
    refuse([problem for override in overrides if (problem := _apply(values, override))])
    return RunConfig.from_values(values, "--set")


def _apply(values: dict[str, Any], override: str) -> str | None:
    """Applies one override to `values` in place; returns an error message, or `None`."""
    parsed = parse_override(override)
    if parsed is None:
        return f"--set: got {shown(override)}, expected key=value, for example optim.lr=2e-4"
    path, value = parsed
    if path == "objective.name":
        return (
            f"--set: got {shown(override)}, which would keep the loss weights of another objective; use --objective"
            f" {shown(str(value))[1:-1]}"
        )
    parent, _, key = path.rpartition(".")
    sections = {"": values} | {name: part for name, part in values.items() if isinstance(part, dict)}
    if key in sections.get(parent, ()) and path not in sections:
        sections[parent][key] = value
        return None
    others = [name for name in objective_names() if key in objective_class(name).Config.model_fields]
    if others and parent == "objective":
        return (
            f"--set: got {shown(override)}, which objective {sections[parent]['name']} does not have; leave it out or"
            f" choose {' or '.join(others)}"
        )
    keys = [f"{name}.{own}".lstrip(".") for name, part in sections.items() for own in part]
    return (
        f"--set: got unknown key {shown(path)}; expected one of {', '.join(sections.get(parent, values))}"
        f"{did_you_mean(path, keys)}"
    )
