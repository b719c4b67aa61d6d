"""One side of a chunk, training or held out: documents as token ids become sequences and masks, a part of a shard."""

import hashlib
from pathlib import Path

import numpy as np

from data_prep.manifest import BuildConfig
from data_prep.masking import Masker
from data_prep.parts import Block, PartWriter
from data_prep.records import PartEntry
from data_prep.sequences import TokenStream, build_sequences
from data_prep.tokens import WordPiece

# Made into sequences together: memory grows neither with the chunk nor with a document, nor with the number of tiny
# ones, whose masks take more than their text.
_TOKENS_AT_ONCE = 1 << 22
_DOCUMENTS_AT_ONCE = 1 << 16


class Side:
    """Takes documents in, and writes them to `path` as one part.

    The random stream belongs to the build's seed, the chunk's key and the side's name.

    Attributes:
        documents, characters: how many came in.
    """

    def __init__(self, seed_key: str, config: BuildConfig, tokenizer: WordPiece, path: Path) -> None:
        digest = hashlib.sha256(seed_key.encode()).digest()
        self._random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        self._config, self._tokenizer = config, tokenizer
        self._masker = Masker(
            config.seq_length, config.mask_copies, config.ngram, tokenizer.never_masked, tokenizer.continuation
        )
        self._ngrams = np.zeros(len(config.ngram), np.int64)
        self._part = PartWriter(path)
        self._sequences = self._tokens = self._word_pieces = self._unknown = 0
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._tokens_waiting = 0
        self.documents = self.characters = 0

    def add(self, ids: np.ndarray, sentence_lengths: np.ndarray, characters: int) -> None:
        """Takes in one document: its ids laid end to end, and how many each sentence has."""
        self.documents += 1
        self.characters += characters
        self._waiting.append((ids, sentence_lengths))
        self._tokens_waiting += len(ids)
        if self._tokens_waiting >= _TOKENS_AT_ONCE or len(self._waiting) >= _DOCUMENTS_AT_ONCE:
            self._make_sequences()

    def finish(self) -> PartEntry | None:
        """Completes the part; None, and no file, where no document came in."""
        self._make_sequences()
        size, sha256 = self._part.close()
        if not size:
            return None
        return PartEntry(
            sequences=self._sequences,
            tokens=self._tokens,
            word_pieces=self._word_pieces,
            unknown=self._unknown,
            ngrams=tuple(self._ngrams.tolist()),
            size=size,
            sha256=sha256,
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
        self._part.add(Block(sequences.lengths, sequences.ids, masks))
        self._ngrams += ngrams
        self._sequences += len(sequences.lengths)
        self._tokens += len(sequences.ids)
        self._word_pieces += int((~np.isin(sequences.ids, (special.cls, special.sep))).sum())
        self._unknown += int((sequences.ids == special.unk).sum())

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
