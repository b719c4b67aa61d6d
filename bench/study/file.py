"""The file of a study: which rows are trained on what, how they are measured, and what was predicted beforehand."""

import hashlib
import json
import re
from collections import Counter
from math import inf
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from electra_sampler.foundation.config import ConfigError, StrictConfig, one_of, without_duplicates
from pretrain.config import with_overrides
from pretrain.method.registry import load_objective
from pretrain.presets import ROWS, load_row, preset, with_objective, with_row

Name = Annotated[str, Field(min_length=1, max_length=80)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Override = Annotated[str, Field(pattern=r"^[\w.]+=\S+$")]
Preset = Literal["tiny", "small", "base", "modern_tiny", "modern_17m", "modern_base"]


class Row(StrictConfig):
    """A way of pre-training: a row of the paper's tables or an objective, with overrides."""

    name: Name
    row: str | None = None
    """as `--row` of run.py"""
    objective: str | None = None
    """as `--objective` of run.py; kept as given, since commands take a sampler's file, not its name"""
    preset: Preset | None = None
    """as `--preset` of run.py, instead of the study's"""
    init_from: tuple[str, ...] = ()
    """instead of the study's"""
    set: tuple[Override, ...] = ()
    """as `--set` of run.py"""
    steps: int | None = Field(default=None, ge=2)
    """optimizer steps instead of the study's, for as many FLOPs as another row"""
    has_generator: bool = True
    """false if the row trains no generator: no gate on the MLM loss, no distance from the oracle"""

    @model_validator(mode="after")
    def _is_one_objective(self) -> Self:
        if (self.row is None) == (self.objective is None):
            raise ValueError(f"row {self.name!r}: give either row or objective")
        return self

    @property
    def folder(self) -> str:
        """The row's name in a form that suits file names."""
        return re.sub(r"[^\w.=+-]+", "-", self.name)

    @property
    def sampler_file(self) -> str | None:
        """The sampler's file, which every command must be given by `--objective`; None for a built-in objective."""
        given = ROWS[self.row][0] if self.row else self.objective
        return given if given and ":" in given else None


class Reference(StrictConfig):
    """The run that every cell is crossed with; it is trained once, with a seed that no cell has.

    Its discriminator judges every cell's replacements; its replacements are judged by every cell's discriminator.
    """

    row: str
    seed: Seed
    replacements: Literal["p_G", "p_S"] = "p_G"
    """the distribution of its replacements"""


class Probe(StrictConfig):
    """Fine-tuning on one task."""

    task: Literal["CoLA", "SST-2", "RTE", "MRPC", "STS-B", "MNLI", "SQuAD", "POS", "NER"]
    metric: str
    """metric in results.jsonl"""
    epochs: int = Field(ge=1)
    seeds: tuple[Seed, ...] = Field(min_length=1)
    """fine-tuning seeds"""
    options: tuple[str, ...] = ()
    """further options of run_glue.py, run_squad.py or run_tagging.py"""

    @property
    def measure(self) -> str:
        """Name of the measure: the mean of the metric over the fine-tuning seeds."""
        return f"{self.task} {self.metric}"

    @property
    def script(self) -> str:
        """The script of `finetune/` that fine-tunes on the task."""
        scripts = {"SQuAD": "run_squad.py", "POS": "run_tagging.py", "NER": "run_tagging.py"}
        return scripts.get(self.task, "run_glue.py")

    @property
    def split(self) -> str:
        """The dev split that is scored."""
        return "dev_matched" if self.task == "MNLI" else "dev"

    @property
    def folder(self) -> str:
        """Name of the probe's folder: the task and a hash of all settings, so other settings get another folder."""
        return f"{self.task}-{hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:8]}"


AGREEMENT = ("agreement", "agreement at the end")
"""Measures of a study on the controlled language: percent of far minimal pairs right, over the run and at its end."""


class Gates(StrictConfig):
    """Minimum progress that a run must make for its numbers to mean something."""

    mlm_gain: float = 0.5
    """nats by which the MLM loss must be below the unigram entropy"""
    loss_over_entropy: float = 0.95
    """upper bound on discriminator loss / entropy of the replaced share, on the row's own replacements"""


class Prediction(StrictConfig):
    """An expectation written before any run; if it names a measure, the report says whether it holds."""

    text: str
    measure: str | None = None
    row: str | None = None
    minus: str | None = None
    expected: tuple[float | None, float | None] = (0.0, None)
    """bounds between which the difference of the two rows is expected; null for none"""

    @model_validator(mode="after")
    def _is_decided_by_a_difference(self) -> Self:
        if len({self.measure is None, self.row is None, self.minus is None}) > 1:
            raise ValueError(f"{self.text!r}: give measure, row and minus together, or none of them")
        low, high = self.bounds
        if low >= high:
            raise ValueError(f"{self.text!r}: expected: got {list(self.expected)}, expected a lower and a higher bound")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """`expected`, with an infinity for each missing bound."""
        low, high = self.expected
        return -inf if low is None else low, inf if high is None else high


def blimp_measure(kind: str) -> str:
    """Returns the name of BLiMP's measure by this kind of score."""
    return "BLiMP" if kind == "discriminator" else f"BLiMP {kind}"


class Conditions(StrictConfig):
    """The settings of a study that, with a row and a seed, determine the numbers of a cell."""

    preset: Preset
    vocab_size: int | None = Field(default=None, ge=100, le=65_536)
    """tokens of a vocabulary learned from the text"""
    language: bool = False
    """train on the controlled language of bench/language.py, with its own vocabulary, and measure its agreements"""
    init_from: tuple[str, ...] = ()
    """as `--init_from` of run.py, relative to the output folder"""
    seq_length: int = Field(ge=8, le=65_535)
    steps: int = Field(ge=2)
    warmup_steps: int = Field(ge=1)
    set: tuple[Override, ...] = ()
    """overrides for every row"""
    deepspeed_config: str | None = None
    """as `--deepspeed_config` of run.py"""
    reference: Reference | None = None
    held_out_sequences: int = Field(ge=16, le=4096)
    """sequences of every evaluation"""
    oracle_sequences: int = Field(default=0, ge=0, le=4096)
    """sequences on which the distance from the oracle's distribution is measured"""
    blimp: tuple[Literal["discriminator", "generator", "likelihood"], ...] = ("discriminator",)
    """scores on BLiMP, as `--score` of blimp.py; likelihoods of a sampler from a file are those of p_G"""
    probes: tuple[Probe, ...] = ()


class Study(Conditions):
    """A study: every row is trained with every seed."""

    title: str
    vocab: str | None = None
    """a given vocabulary, as `--vocab` of build_shards.py, relative to the output folder; no condition, since the
    shards' checksum covers it"""
    rows: tuple[Row, ...] = Field(min_length=1)
    baseline: str
    """the row that the others are compared with"""
    seeds: tuple[Seed, ...] = Field(min_length=1)
    gates: Gates = Gates()
    measures: tuple[str, ...]
    """measures whose effects are reported"""
    predictions: tuple[Prediction, ...] = ()

    @field_validator("rows")
    @classmethod
    def _have_names_of_their_own(cls, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        if doubled := [name for name, count in Counter(row.folder.lower() for row in rows).items() if count > 1]:
            raise ValueError(f"got {', '.join(doubled)} twice, expected names that differ as file names; rename one")
        return rows

    @model_validator(mode="after")
    def _names_what_exists(self) -> Self:
        names = [row.name for row in self.rows]
        named = [("baseline", self.baseline)]
        named += [("reference.row", self.reference.row)] if self.reference else []
        for prediction in self.predictions:
            named += [("predictions.row", name) for name in (prediction.row, prediction.minus) if name is not None]
        problems = [f"{field}: got {name!r}, {one_of(name, names)}" for field, name in named if name not in names]
        for row in self.rows:
            try:
                run = preset(row.preset or self.preset)
                run = (
                    with_row(run, load_row(row.row))
                    if row.row
                    else with_objective(run, load_objective(row.objective or ""))
                )
                with_overrides(run, [*self.set, *row.set])
            except ConfigError as error:
                problems.append(f"rows: {row.name!r}: {error}")
            except ValueError as error:
                problems.append(f"rows: {row.name!r}: objective: {error}")
        wanted = [*self.measures, *(part.measure for part in self.predictions if part.measure is not None)]
        known = self.known_measures()
        problems += [f"measures: got {name!r}, {one_of(name, known)}" for name in wanted if name not in known]
        if sum((self.vocab_size is not None, self.vocab is not None, self.language)) != 1:
            problems.append("vocab_size: give one of vocab_size, vocab and language")
        if self.reference and self.reference.seed in self.seeds:
            problems.append(f"reference.seed: got {self.reference.seed}, expected a seed that no cell has")
        if self.warmup_steps >= (least := min(row.steps or self.steps for row in self.rows)):
            problems.append(f"warmup_steps: got {self.warmup_steps}, expected fewer than the {least} steps")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def known_measures(self) -> list[str]:
        """Returns the names of the measures whose examples are stored for bootstraps."""
        places = ("difficulty", "frozen", "own") if self.reference else ()
        crossed = [f"{place} {what}" for place in places for what in ("loss", "accuracy", "AUC")]
        probed = [probe.measure for probe in self.probes]
        return [*crossed, *map(blimp_measure, self.blimp), *probed, *(AGREEMENT if self.language else ())]

    def conditions(self) -> Conditions:
        return Conditions(**{name: getattr(self, name) for name in Conditions.model_fields})

    @property
    def reference_row(self) -> Row | None:
        return self.row(self.reference.row) if self.reference else None

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def scaled(self, scale: float) -> "Study":
        """Returns the study with steps, epochs and held-out sequences multiplied by `scale`, for a rehearsal."""
        steps = max(2, round(self.steps * scale))
        probes = tuple(
            probe.model_copy(update={"epochs": max(1, round(probe.epochs * scale))}) for probe in self.probes
        )
        return self.model_copy(
            update={
                "steps": steps,
                "rows": tuple(
                    row.model_copy(update={"steps": row.steps and max(2, round(row.steps * scale))})
                    for row in self.rows
                ),
                "warmup_steps": max(1, round(self.warmup_steps * scale)),
                "held_out_sequences": max(16, round(self.held_out_sequences * scale)),
                "oracle_sequences": round(self.oracle_sequences * scale),
                "probes": probes,
            }
        )


def read_study(path: Path) -> Study:
    """Reads the file of a study.

    Raises:
        ConfigError: it cannot be read, or a field is wrong.
    """
    try:
        values = json.loads(path.read_text(), object_pairs_hook=without_duplicates)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"study: {path} is not a readable JSON file: {error}; see bench/studies for examples"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(f"study: {path} holds no JSON object; see bench/studies for examples")
    return Study.from_values(values, str(path))
