"""Evidence of a run's health in its own files: its records, and a sample of the text it reads. No model is loaded."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from data_prep.tokens import WordPiece
from foundation.config import ConfigError
from pretrain.analysis.run_history import Log, read_log
from pretrain.data.shards import open_shards
from pretrain.training.run_folder import read_run
from pretrain.training.run_log import RECORDS

RECENT = 5
"""Records that are averaged: a single one speaks of few masked positions."""
SAMPLED = 2048
"""Sequences of the text that are read: the first of the run, so those of every folder in their shares."""


class Unjudged(Exception):
    """A check that the run's files do not allow; says which and why."""


class Measured(NamedTuple):
    """A measure of a run beside its threshold."""

    name: str
    value: float
    limit: float
    most: bool = True
    """The limit is the most that is healthy, else the least."""

    @property
    def beyond(self) -> bool:
        return self.value > self.limit if self.most else self.value < self.limit


class Text(NamedTuple):
    """Measures of a sample of the text."""

    unknown_share: float
    """[UNK] among the word pieces."""
    pieces_per_word: float
    unigram_entropy: float
    """Entropy of the word pieces, in nats: the cross-entropy of knowing their frequencies and nothing else."""
    steps: int
    """Number of steps that read the sample."""


class Symptoms:
    """The records of a run, as its checks ask for them.

    Raises:
        ConfigError: not a run folder, or one without a record.
    """

    def __init__(self, folder: Path, log: Log | None = None) -> None:
        """`log` is the run's, where it is read already: it may hold a million records."""
        self.folder, self.description = folder, read_run(folder)
        self.run = self.description.run
        self.train, self.held_out, *_ = log or read_log(folder / RECORDS)
        if not self.train:
            raise ConfigError(f"{folder}: too early to judge: no step is logged yet; look again later")
        self.last = self.train[-1]
        self.step: int = self.last["step"]

    def recent(self, until: int | None = None) -> list[dict[str, Any]]:
        """The newest records of training, or those up to a step."""
        return [record for record in self.train if until is None or record["step"] <= until][-RECENT:]

    def when(self, until: int | None = None) -> str:
        """The steps that these records speak of."""
        first, last = (self.recent(until)[place]["step"] for place in (0, -1))
        before = max((record["step"] for record in self.train if record["step"] < first), default=0)
        return f"steps {before + 1:,} to {last:,}"

    def mean(self, name: str, until: int | None = None) -> float:
        """Mean over these records, as far as they have the value: one that does not exist is left out."""
        values = [record[name] for record in self.recent(until) if name in record]
        if not values:
            raise KeyError(name)
        return fmean(values)

    @property
    def mean_length(self) -> float:
        """Mean length of a sequence, in tokens."""
        return self.last["tokens_so_far"] / (self.step * self.run.batch_size)

    @property
    def lowest_loss(self) -> tuple[float, int]:
        """The least mean MLM loss of as many records in a row as are averaged, and the last step of them."""
        return min(
            (
                fmean(record["mlm_loss"] for record in self.train[max(0, end - RECENT) : end]),
                self.train[end - 1]["step"],
            )
            for end in range(min(RECENT, len(self.train)), len(self.train) + 1)
        )

    @property
    def evaluated(self) -> Mapping[str, Any]:
        """The newest evaluation on held-out text."""
        if not self.held_out:
            raise Unjudged("repeated data: nothing was evaluated on held-out text")
        return self.held_out[-1]

    @cached_property
    def text(self) -> Text:
        """Measures of the sequences that the run's first steps read."""
        description = self.description
        try:
            shards = open_shards(*map(Path, description.data), weights=description.data_weights)
            index_B, _ = shards.shuffled(np.arange(min(SAMPLED, len(shards))), self.run.seed)
            ids_BL, _, _ = shards.read(index_B, np.zeros_like(index_B))
            words = WordPiece.load(self.folder / "tokenizer")
        except ConfigError:
            raise Unjudged(f"what needs the text: {', '.join(description.data)} cannot be read from here") from None
        counts_V = np.bincount(ids_BL.flatten(), minlength=words.vocab_size) * ~words.never_masked
        pieces = counts_V.sum()
        shares_V = counts_V[counts_V > 0] / pieces
        return Text(
            unknown_share=counts_V[words.special.unk] / pieces,
            pieces_per_word=pieces / counts_V[~words.continuation].sum(),
            unigram_entropy=-(shares_V * np.log(shares_V)).sum(),
            steps=-(-len(index_B) // self.run.batch_size),
        )
