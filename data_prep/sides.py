"""One side of a chunk, training or held out: documents as token ids become sequences and masks, and those a shard."""

import hashlib
from pathlib import Path

import numpy as np

from data_prep.manifest import BuildConfig, ShardEntry
from data_prep.masking import Masker
from data_prep.sequences import TokenStream, build_sequences
from data_prep.shards import write_indexed_arrays
from data_prep.tokens import WordPiece

_TOKENS_AT_ONCE = 1 << 22  # made into sequences together: memory does not grow with the chunk or a document


class Side:
    """Takes documents in, and writes them as one shard.

    The random stream belongs to the build's seed, the chunk's key and the side's name.

    Attributes:
        documents, characters: how many came in.
    """

    def __init__(self, seed_key: str, config: BuildConfig, tokenizer: WordPiece) -> None:
        digest = hashlib.sha256(seed_key.encode()).digest()
        self._random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        self._config, self._tokenizer = config, tokenizer
        self._masker = Masker(
            config.seq_length, config.mask_copies, config.ngram, tokenizer.never_masked, tokenizer.continuation
        )
        self._ngrams = np.zeros(len(config.ngram), np.int64)
        self._ids: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._masks: list[np.ndarray] = []
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._tokens_waiting = 0
        self.documents = self.characters = 0

    def add(self, ids: np.ndarray, sentence_lengths: np.ndarray, characters: int) -> None:
        """Takes in one document: its ids laid end to end, and how many each sentence has."""
        self.documents += 1
        self.characters += characters
        self._waiting.append((ids, sentence_lengths))
        self._tokens_waiting += len(ids)
        if self._tokens_waiting >= _TOKENS_AT_ONCE:
            self._make_sequences()

    def write(self, folder: Path, name: str, chunk_key: str) -> ShardEntry | None:
        """Writes the shard; None where no document came in."""
        self._make_sequences()
        if not self._ids:
            return None
        ids, lengths, masks = (np.concatenate(parts) for parts in (self._ids, self._lengths, self._masks))
        mask_lengths = np.full(len(masks), masks.shape[1], np.int32)
        files = write_indexed_arrays(folder / name, ids, lengths)
        files |= write_indexed_arrays(folder / f"{name}.mask", masks.ravel(), mask_lengths)
        special = self._tokenizer.special
        return ShardEntry(
            name=name,
            chunk=chunk_key,
            sequences=len(lengths),
            tokens=len(ids),
            word_pieces=int((~np.isin(ids, (special.cls, special.sep))).sum()),
            unknown=int((ids == special.unk).sum()),
            ngrams=tuple(self._ngrams.tolist()),
            sizes={file: (folder / file).stat().st_size for file in files},
            files=files,
        )

    def _make_sequences(self) -> None:
        """Sequences and masks of the documents that wait."""
        if not self._waiting:
            return
        config, special = self._config, self._tokenizer.special
        sequences = build_sequences(
            self._stream(), config.seq_length, config.packing, config.builder, special.cls, special.sep, self._random
        )
        masks, ngrams = self._masker.draw(sequences.ids, sequences.lengths, self._random)
        self._ids.append(sequences.ids)
        self._lengths.append(sequences.lengths)
        self._masks.append(masks)
        self._ngrams += ngrams

    def _stream(self) -> TokenStream:
        """The waiting documents end to end; none waits any more."""
        documents, self._waiting, self._tokens_waiting = self._waiting, [], 0
        ids = np.concatenate([ids for ids, _ in documents])
        return TokenStream(
            ids,
            ~self._tokenizer.continuation[ids],
            np.cumsum(np.concatenate([lengths for _, lengths in documents])),
            np.cumsum([len(ids) for ids, _ in documents]),
        )
