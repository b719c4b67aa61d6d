"""Measures a run's health from its own files: its records, and a sample of its training text. Loads no model."""

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from data_prep.tokens import SubwordTokenizer
from electra_sampler.foundation.config import ConfigError
from pretrain.analysis.analysis import unigram_entropy
from pretrain.analysis.run_history import Log, read_log, value_of
from pretrain.data.remote import url_of
from pretrain.data.shards import open_shards
from pretrain.runs.folder import data_of, flat, read_run
from pretrain.runs.log import RECORDS

RECENT = 5
"""Number of newest records to average; a single record covers few masked positions."""
SAMPLED = 2048
"""Sequences of text to read: the first in the run's training order, so data folders appear by their weights."""


class SkippedCheck(Exception):
    """Raised by a check that the run's files do not allow; the message names the check and says why."""


class TextSample(NamedTuple):
    """Statistics of a sample of the training text."""

    unknown_share: float
    """Share of [UNK] among the word pieces."""
    pieces_per_word: float
    unigram_entropy: float
    """Entropy of the word pieces' frequencies in nats: the cross-entropy of a model that knows only frequencies."""
    steps: int
    """Number of training steps that the sample covers."""


def _numbers(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the valid numbers of a record, by dotted name; leaves out damaged values."""
    return {name: value for name, value in flat(dict(record)) if not math.isnan(value_of({name: value}, name))}


class Symptoms:
    """The records of a run, and the measures that the checks in health.py need.

    Raises:
        ConfigError: not a run folder, or nothing is logged yet.
    """

    def __init__(self, folder: Path, log: Log | None = None) -> None:
        """`log` is the run's log if it has been read already: the file may hold a million records."""
        self.folder, self.description = folder, read_run(folder)
        self.run = self.description.run
        train, held_out, *_ = log or read_log(folder / RECORDS)
        self.train, self.held_out = ([*map(_numbers, records)] for records in (train, held_out))
        if not self.train:
            raise ConfigError(f"{folder}: too early to judge: no step is logged yet; look again later")
        self.last, self.sure = self.train[-1], value_of(train[-1], "max_probability/p_G/9")
        self.step: int = self.last["step"]

    def recent(self, until: int | None = None) -> list[dict[str, Any]]:
        """Returns the newest `RECENT` training records, or the newest up to the step `until`."""
        return [record for record in self.train if until is None or record["step"] <= until][-RECENT:]

    def when(self, until: int | None = None) -> str:
        """Describes the steps that the recent records cover, for a message."""
        first, last = (self.recent(until)[place]["step"] for place in (0, -1))
        before = max((record["step"] for record in self.train if record["step"] < first), default=0)
        return f"steps {before + 1:,} to {last:,}"

    def mean(self, name: str, until: int | None = None) -> float:
        """Returns the mean of a metric over the recent records that have it.

        Raises:
            KeyError: no recent record has the metric.
        """
        values = [record[name] for record in self.recent(until) if name in record]
        if not values:
            raise KeyError(name)
        return fmean(values)

    @property
    def mean_length(self) -> float:
        """Mean length of the run's training sequences, in tokens."""
        return self.last["tokens_so_far"] / (self.step * self.run.batch_size)

    @property
    def lowest_loss(self) -> tuple[float, int]:
        """The lowest mean MLM loss over `RECENT` consecutive records, and the step of the last of these records."""
        return min(
            (
                fmean(record["mlm_loss"] for record in self.train[max(0, end - RECENT) : end]),
                self.train[end - 1]["step"],
            )
            for end in range(min(RECENT, len(self.train)), len(self.train) + 1)
        )

    @cached_property
    def text(self) -> TextSample:
        """Statistics of the sequences that the run read first; shards behind a URL are not opened."""
        description = self.description
        if urls := [url for name in description.data if (url := url_of(Path(name)))]:
            raise SkippedCheck(f"checks of the text: {', '.join(urls)} is not opened, as no network is used here")
        try:
            shards = open_shards(
                *data_of(description), weights=description.data_weights, window=self.run.shards_per_window
            )
            index_B, _ = shards.mixture.shuffled(np.arange(min(SAMPLED, len(shards))), self.run.seed)
            ids_BL, _, _ = shards.read(index_B, np.zeros_like(index_B))
            words = SubwordTokenizer.load(self.folder / "tokenizer")
        except (ConfigError, OSError) as error:
            raise SkippedCheck(f"checks of the text: {error}") from None
        if words.sha256() != shards.manifest.tokenizer_sha256:
            raise SkippedCheck(
                f"checks of the text: {self.folder / 'tokenizer'} is not the tokenizer of {shards.names[0]}; restore it"
                " from there"
            )
        counts_V = np.bincount(ids_BL.flatten(), minlength=words.vocab_size) * ~words.never_masked
        pieces = counts_V.sum()
        return TextSample(
            unknown_share=counts_V[words.special.unk] / pieces,
            pieces_per_word=pieces / counts_V[~words.continuation].sum(),
            unigram_entropy=unigram_entropy(counts_V),
            steps=-(-len(index_B) // self.run.batch_size),
        )
