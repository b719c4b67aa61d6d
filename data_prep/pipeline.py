"""Builds one shard: runs its text through every step, from bytes to the sequences and masks of its two sides,
training and held out.

The random streams depend only on the seed and the shard's key, so neither the number of workers nor a restart changes a
byte.
"""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.cleaning import CleanedText, clean, decode
from data_prep.curation.contamination import Contamination
from data_prep.curation.curator import Curator, language_test
from data_prep.formats import Document, wiki_asides
from data_prep.manifest import WORK_NAME, Books, BuildConfig, Ledger, ShardEntry, Share
from data_prep.masking import Masker
from data_prep.output import HELD_OUT, SIDES, TRAIN, ContaminatedDocument, ShardRecord
from data_prep.reading import Chunk, batches, hashed, text_digest
from data_prep.sentences import PUNKT_NAME, Punkt, load_model, split_sentences
from data_prep.sequences import TokenStream, build_sequences
from data_prep.shards import IndexedWriter, remove_files
from data_prep.tokens import TOKENIZER_NAME, SubwordTokenizer
from electra_sampler.foundation.files import TEMPORARY_SUFFIX

_AT_ONCE = 1 << 19  # characters per batch of documents, and per call of the tokenizer
_MOST_LISTED = 100  # contaminated documents listed per shard; the ledger counts all
_WEIGHT = 256  # characters added to each document's size in a batch, for the memory of its Python objects
# Limits of one batch of documents. They bound memory for long documents, and for many tiny ones, whose masks take more
# than their text.
_TOKENS_AT_ONCE = 1 << 20
_DOCUMENTS_AT_ONCE = 1 << 16


class Text(NamedTuple):
    """A cleaned document and the input that it came from."""

    origin: str
    document: Document
    cleaned: CleanedText


def build_shard(
    name: str,
    key: str,
    chunks: Iterator[Chunk],
    copies: Mapping[int, str],
    config: BuildConfig,
    output: Path,
) -> ShardRecord:
    """Writes the files of a shard, whose names begin with `name`, and returns its record.

    `key` and the build's seed determine the random streams. `copies` maps the index of each duplicate document in the
    shard to the reason for dropping it.

    Raises:
        ConfigError: the text cannot be read.
    """
    tokenizer, punkt, curator = load_tools(output, config)
    sides = {
        side: Side(f"{config.seed}\n{key}\n{side}", config, tokenizer, output / folder, name)
        for side, folder in SIDES.items()
    }
    digest = text_digest()
    intake = Intake(hashed(chunks, digest), copies, config, curator)
    try:
        for texts in batches(intake.kept(), _AT_ONCE, lambda text: len(text.cleaned.text) + _WEIGHT):
            tokenized = _tokenize(texts, tokenizer, punkt, marks=config.sentences == "marks")
            for document, (ids, sentence_lengths) in zip(texts, tokenized, strict=True):
                if side := intake.side_of(document, len(ids)):
                    sides[side].add(ids, sentence_lengths)
        entries = {name: side.finish() for name, side in sides.items()}
    finally:
        for folder in SIDES.values():
            remove_files(output / folder / name, TEMPORARY_SUFFIX)  # an error, as of a full disk, may leave the others'
    return ShardRecord(
        text=digest.hexdigest(),
        duplicates=copies_digest(copies),
        books=intake.books(entries),
        contaminated=tuple(intake.contaminated),
        **entries,
    )


def copies_digest(copies: Mapping[int, str]) -> str:
    """Returns a digest of the indices of a shard's duplicates, and of the reasons to drop them."""
    return hashlib.blake2b(str(sorted(copies.items())).encode(), digest_size=8).hexdigest()


class Intake:
    """Cleans and filters a shard's documents, and accounts for every one of them.

    Attributes:
        contaminated: the first `_MOST_LISTED` documents that share an n-gram with an evaluation set.
    """

    def __init__(
        self, chunks: Iterator[Chunk], copies: Mapping[int, str], config: BuildConfig, curator: Curator
    ) -> None:
        self._chunks, self._copies = chunks, copies
        self._config, self._curator = config, curator
        self.contaminated: list[ContaminatedDocument] = []
        # read, on each side, and removed or dropped by reason
        self._documents: Counter[str] = Counter()
        self._characters: Counter[str] = Counter()
        self._word_pieces: Counter[str] = Counter()
        self._repairs: Counter[str] = Counter()
        self._shares: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def kept(self) -> Iterator[Text]:
        """Yields the documents that are kept, cleaned."""
        numbers = count()
        for chunk in self._chunks:
            self._repairs["cut_documents"] += chunk.cut
            for document in chunk.documents(self._config.reading):
                copy = self._copies.get(next(numbers))
                reason = document.reason or copy
                cleaned = (
                    decode(document.content)
                    if reason
                    else clean(document.content, wiki_asides(chunk.source.path) if document.wikitext else None)
                )
                reason = reason or _emptiness(cleaned) or self._curate(chunk, document, cleaned) or _emptiness(cleaned)
                self._count("read", cleaned.read)
                self._characters.update(cleaned.removed)
                self._repairs.update(
                    invalid_utf8=cleaned.invalid_utf8,
                    normalized_documents=cleaned.normalized,
                    cut_lines=cleaned.cut_lines,
                    cut_documents=document.cut,
                )
                if reason:
                    self._count(reason, cleaned.kept)
                else:
                    yield Text(chunk.source.origin, document, cleaned)

    def _curate(self, chunk: Chunk, document: Document, cleaned: CleanedText) -> str | None:
        """Removes lines from the text as the configuration asks; returns the reason to drop the document, or None."""
        verdict = self._curator.judge(cleaned.text)
        cleaned.text = verdict.text
        for reason, characters in verdict.removed.items():  # NFC may have made the text longer than the one read
            cleaned.removed[reason] = min(characters, cleaned.kept)
        if verdict.match and len(self.contaminated) < _MOST_LISTED:
            self.contaminated.append(
                ContaminatedDocument(document=f"{chunk.source.key}@{document.place}", **verdict.match._asdict())
            )
        return verdict.reason

    def _count(self, place: str, characters: int) -> None:
        """Counts one document, of so many characters, as read, for a side, or dropped for a reason."""
        self._documents[place] += 1
        self._characters[place] += characters

    def side_of(self, text: Text, word_pieces: int) -> str | None:
        """Returns the side chosen for a document, and counts it there; None if `word_pieces` is 0.

        The choice depends only on the content: equal documents are always on the same side, with any seed.
        """
        if not word_pieces:
            self._count("empty", text.cleaned.kept)
            return None
        draw = int.from_bytes(text.document.digest) / 2**64
        side = HELD_OUT if draw < self._config.held_out else TRAIN
        self._count(side, text.cleaned.kept)
        self._word_pieces["read"] += word_pieces
        self._shares[text.origin].update(documents=1, characters=text.cleaned.kept, word_pieces=word_pieces)
        return side

    def books(self, entries: Mapping[str, ShardEntry | None]) -> Books:
        """Returns the counts of all text that the shard read, and of what its sides received."""
        self._word_pieces.update({side: entry.word_pieces for side, entry in entries.items() if entry})
        return Books(
            documents=_ledger(self._documents),
            characters=_ledger(self._characters),
            word_pieces=_ledger(self._word_pieces),
            inputs={origin: Share(**share) for origin, share in sorted(self._shares.items())},
            **self._repairs,
        )


def _ledger(counts: Counter[str]) -> Ledger:
    places = {place: counts.pop(place, 0) for place in ("read", *SIDES)}
    return Ledger(**places, dropped={reason: amount for reason, amount in sorted(counts.items()) if amount})


def _emptiness(cleaned: CleanedText) -> str | None:
    return "empty" if not cleaned.text or cleaned.text.isspace() else None


@lru_cache(maxsize=1)
def load_tools(output: Path, config: BuildConfig) -> tuple[SubwordTokenizer, Punkt | None, Curator]:
    """Returns tokenizer, sentence splitter (None if each line is a sentence) and curator; cached per process."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers already use all cores
    punkt = None if config.sentences == "line" else Punkt(load_model(output / PUNKT_NAME))
    is_kept = language_test(config.keep_language, config.language_threshold) if config.keep_language else None
    contamination = Contamination(output / WORK_NAME) if config.evaluation_sets else None
    return SubwordTokenizer.load(output / TOKENIZER_NAME), punkt, Curator(config.filter, is_kept, contamination)


def _tokenize(
    texts: Sequence[Text], tokenizer: SubwordTokenizer, punkt: Punkt | None, *, marks: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the token ids of each text, and the number of ids in each of its sentences."""
    documents = [split_sentences(text.cleaned.text, punkt, marks=marks) for text in texts]
    sentences = [sentence for document in documents for sentence in document]
    encoded = [tokenizer.encode(batch) for batch in batches(sentences, _AT_ONCE, len)]  # in batches to bound memory
    ids, lengths = (np.concatenate(arrays) for arrays in zip(*encoded, strict=True))
    sentence_ends = np.cumsum([len(document) for document in documents])
    token_ends = np.concatenate(([0], np.cumsum(lengths)))[sentence_ends]
    return zip(np.split(ids, token_ends[:-1]), np.split(lengths, sentence_ends[:-1]), strict=True)


class Side:
    """One side of a shard, training or held out: collects documents and writes their sequences and masks.

    Args:
        seed_key: the build's seed, the shard's key and the side's name; determines the random stream.
    """

    def __init__(
        self, seed_key: str, config: BuildConfig, tokenizer: SubwordTokenizer, folder: Path, name: str
    ) -> None:
        digest = hashlib.sha256(seed_key.encode()).digest()
        self._random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        self._config, self._tokenizer = config, tokenizer
        self._masker = Masker(
            config.seq_length, config.mask_copies, config.ngram, tokenizer.never_masked, tokenizer.continuation
        )
        self._prefix = folder / name
        self._ids = IndexedWriter(self._prefix, np.uint16)
        self._masks = IndexedWriter(folder / f"{name}.mask", np.uint8)
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
            remove_files(self._prefix)  # an earlier shard of this name may have had some
            return None
        written = self._ids.close() | {f".mask{suffix}": file for suffix, file in self._masks.close().items()}
        return ShardEntry(name=self._prefix.name, **self._counts, ngrams=tuple(self._ngrams.tolist()), written=written)

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
            stream, config.seq_length, config.packing, special.cls, special.sep, self._random, config.one_segment
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
