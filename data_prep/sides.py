"""The two sides of a shard, training and held out: sequences and masks of the documents that a worker gives them."""

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np

from data_prep.manifest import BuildConfig, ShardEntry
from data_prep.masking import Masker
from data_prep.sequences import TokenStream, build_sequences
from data_prep.shards import IndexedWriter
from data_prep.tokens import WordPiece

# Limits of one batch of documents. They bound memory for long documents, and for many tiny ones, whose masks take more
# than their text.
_TOKENS_AT_ONCE = 1 << 22
_DOCUMENTS_AT_ONCE = 1 << 16


class Side:
    """One side of a shard, training or held out: collects documents and writes their sequences and masks.

    Args:
        seed_key: the build's seed, the shard's key and the side's name; determines the random stream.
    """

    def __init__(self, seed_key: str, config: BuildConfig, tokenizer: WordPiece, folder: Path, name: str) -> None:
        digest = hashlib.sha256(seed_key.encode()).digest()
        self._random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        self._config, self._tokenizer = config, tokenizer
        self._masker = Masker(
            config.seq_length, config.mask_copies, config.ngram, tokenizer.never_masked, tokenizer.continuation
        )
        self._name = name
        self._ids, self._masks = (
            IndexedWriter(folder / name, np.uint16),
            IndexedWriter(folder / f"{name}.mask", np.uint8),
        )
        self._counts: Counter[str] = Counter()
        self._ngrams = np.zeros(len(config.ngram), np.int64)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._tokens_waiting = 0

    def add(self, ids: np.ndarray, sentence_lengths: np.ndarray) -> None:
        """Adds one document: its concatenated ids and the number of ids in each sentence."""
        self._waiting.append((ids, sentence_lengths))
        self._tokens_waiting += len(ids)
        if self._tokens_waiting >= _TOKENS_AT_ONCE or len(self._waiting) >= _DOCUMENTS_AT_ONCE:
            self._make_sequences()

    def finish(self) -> ShardEntry | None:
        """Completes the files; returns None, and leaves no file, if no document was added."""
        if self._waiting:
            self._make_sequences()
        if not self._counts:
            return None
        masks = {f".mask{suffix}": written for suffix, written in self._masks.close().items()}
        written = self._ids.close() | masks
        return ShardEntry(name=self._name, **self._counts, ngrams=tuple(self._ngrams.tolist()), written=written)

    def _make_sequences(self) -> None:
        """Writes the sequences and masks of the collected documents."""
        documents, self._waiting, self._tokens_waiting = self._waiting, [], 0
        text = np.concatenate([ids for ids, _ in documents])
        stream = TokenStream(
            text,
            ~self._tokenizer.continuation[text],
            np.cumsum(np.concatenate([lengths for _, lengths in documents])),
            np.cumsum([len(ids) for ids, _ in documents]),
        )
        config, special = self._config, self._tokenizer.special
        ids, lengths = build_sequences(
            stream,
            config.seq_length,
            config.packing,
            config.builder,
            special.cls,
            special.sep,
            self._random,
            config.one_segment,
        )
        masks, ngrams = self._masker.draw(ids, lengths, self._random)
        self._ids.add(ids, lengths)
        self._masks.add(masks, np.full(len(lengths), masks.shape[1]))
        self._ngrams += ngrams
        self._counts.update(
            sequences=len(lengths),
            tokens=len(ids),
            word_pieces=int((~np.isin(ids, (special.cls, special.sep))).sum()),
            unknown=int((ids == special.unk).sum()),
        )
