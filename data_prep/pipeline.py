"""Builds one shard: runs its text through every step, from bytes to sequences and masks.

The random streams depend only on the seed and the shard's key, so neither the number of workers nor a restart changes a
byte.
"""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_prep.cleaning import Cleaned, clean, decode
from data_prep.curation.contamination import Contamination
from data_prep.curation.curator import Curator
from data_prep.curation.language import language_test
from data_prep.formats import RECORD_FORMATS, Document
from data_prep.manifest import WORK_NAME, Books, BuildConfig, Ledger, ShardEntry, Share
from data_prep.punkt import Punkt
from data_prep.reading import Chunk, hashed, new_digest
from data_prep.records import HELD_OUT, SIDES, TRAIN, Contaminated, ShardRecord, folder_of
from data_prep.sentences import Sentences, load_model, split_sentences
from data_prep.sides import Side
from data_prep.tokens import TOKENIZER_NAME, WordPiece
from foundation.config import ConfigError

PUNKT_NAME = "punkt"
_AT_ONCE = 1 << 20  # characters per batch of documents, and per call of the tokenizer
_MOST_LISTED = 100  # contaminated documents listed per shard; the ledger counts all
_WEIGHT = 256  # characters added to each document's size in a batch, for the memory of its Python objects


class Text(NamedTuple):
    """A cleaned document and the input that it came from."""

    origin: str
    document: Document
    cleaned: Cleaned


def build_shard(
    name: str,
    key: str,
    chunks: Iterator[Chunk],
    copies: Mapping[int, str],
    config: BuildConfig,
    output: Path,
    strict: bool = False,
) -> ShardRecord:
    """Writes the files of a shard, whose names begin with `name`, and returns its record.

    `key` and the build's seed determine the random streams. `copies` are reasons to drop documents that are copies of
    others, by their place in the shard.

    Raises:
        ConfigError: the text cannot be read, or with `strict`, is malformed.
    """
    tokenizer, punkt = load_tools(output, config.sentences)
    sides = {
        side: Side(f"{config.seed}\n{key}\n{side}", config, tokenizer, folder_of(output, side), name) for side in SIDES
    }
    digest = new_digest()
    intake = Intake(hashed(chunks, digest), copies, config, strict, load_curator(output, config))
    for texts in intake.batches():
        tokenized = _tokenize(texts, tokenizer, punkt, marks=config.sentences == "marks")
        for document, (ids, sentence_lengths) in zip(texts, tokenized, strict=True):
            if side := intake.side_of(document, len(ids)):
                sides[side].add(ids, sentence_lengths)
    entries = {name: side.finish() for name, side in sides.items()}
    return ShardRecord(
        text=digest.hexdigest(),
        duplicates=copies_digest(copies),
        books=intake.books(entries),
        contaminated=tuple(intake.contaminated),
        **entries,
    )


def copies_digest(copies: Mapping[int, str]) -> str:
    """Returns a digest of the places of a shard's copies, and of the reasons to drop them."""
    return hashlib.blake2b(str(sorted(copies.items())).encode(), digest_size=8).hexdigest()


class Intake:
    """Cleans and filters a shard's documents, and accounts for every one of them.

    Attributes:
        contaminated: the first of the documents that share an n-gram with an evaluation set.
    """

    def __init__(
        self, chunks: Iterator[Chunk], copies: Mapping[int, str], config: BuildConfig, strict: bool, curator: Curator
    ) -> None:
        self._chunks, self._copies = chunks, copies
        self._config, self._strict, self._curator = config, strict, curator
        self.contaminated: list[Contaminated] = []
        # per unit (documents, characters, word pieces): counts read, on each side, and removed or dropped by reason
        self._ledgers: dict[str, Counter[str]] = {
            name: Counter() for name in ("documents", "characters", "word_pieces")
        }
        self._repairs: Counter[str] = Counter()
        self._shares: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def batches(self) -> Iterator[list[Text]]:
        """Yields the documents that are kept, cleaned, in batches."""
        batch: list[Text] = []
        size = 0
        for text in self._used():
            batch.append(text)
            size += len(text.cleaned.text) + _WEIGHT
            if size >= _AT_ONCE:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _used(self) -> Iterator[Text]:
        numbers = count()
        for chunk in self._chunks:
            self._repairs["cut_documents"] += chunk.cut
            for document in chunk.documents(self._config.reading):
                copy = self._copies.get(next(numbers))
                reason = document.reason or copy
                cleaned = decode(document.content) if reason else clean(document.content, wikitext=document.wikitext)
                reason = reason or _emptiness(cleaned) or self._curate(chunk, document, cleaned) or _emptiness(cleaned)
                self._count("read", 1, cleaned.read)
                self._ledgers["characters"].update(cleaned.removed)
                self._repairs.update(
                    invalid_utf8=cleaned.invalid_utf8,
                    normalized_documents=cleaned.normalized,
                    cut_lines=cleaned.cut_lines,
                    cut_documents=document.cut,
                )
                if self._strict:
                    _refuse_malformed(chunk, document, cleaned)
                if reason:
                    self._count(reason, 1, cleaned.kept)
                else:
                    yield Text(chunk.source.origin, document, cleaned)

    def _curate(self, chunk: Chunk, document: Document, cleaned: Cleaned) -> str | None:
        """Removes lines from the text as the configuration asks; returns the reason to drop the document, or None."""
        verdict = self._curator.judge(cleaned.text)
        cleaned.text = verdict.text
        for reason, characters in verdict.removed.items():  # NFC may have made the text longer than the one read
            cleaned.removed[reason] = min(characters, cleaned.kept)
        if verdict.match and len(self.contaminated) < _MOST_LISTED:
            place = f"{chunk.source.key}@{document.place}"
            self.contaminated.append(Contaminated(document=place, **verdict.match._asdict()))
        return verdict.reason

    def _count(self, place: str, documents: int, characters: int, word_pieces: int = 0) -> None:
        for name, amount in zip(self._ledgers, (documents, characters, word_pieces), strict=True):
            self._ledgers[name][place] += amount

    def side_of(self, text: Text, word_pieces: int) -> str | None:
        """Returns the side chosen for a document of `word_pieces` pieces, and accounts for it; None if it has none.

        The choice depends only on the content: equal documents are always on the same side, with any seed.
        """
        if not word_pieces:
            self._count("empty", 1, text.cleaned.kept)
            return None
        draw = int.from_bytes(text.document.digest) / 2**64
        side = HELD_OUT if draw < self._config.held_out else TRAIN
        self._count(side, 1, text.cleaned.kept)
        self._ledgers["word_pieces"]["read"] += word_pieces
        self._shares[text.origin].update(documents=1, characters=text.cleaned.kept, word_pieces=word_pieces)
        return side

    def books(self, entries: Mapping[str, ShardEntry | None]) -> Books:
        """Returns the accounts of the shard: everything read, and everything that its sides received."""
        pieces = self._ledgers["word_pieces"]
        pieces.update({side: entry.word_pieces for side, entry in entries.items() if entry})
        if self._config.builder == "electra":
            pieces["truncated"] = pieces["read"] - pieces[TRAIN] - pieces[HELD_OUT]
        shares = {origin: Share(**share) for origin, share in sorted(self._shares.items())}
        fields: dict[str, Any] = {**self._repairs, "inputs": shares}
        for name, counts in self._ledgers.items():
            places = {place: counts.pop(place, 0) for place in ("read", *SIDES)}
            dropped = {reason: amount for reason, amount in sorted(counts.items()) if amount}
            fields[name] = Ledger(**places, dropped=dropped)
        return Books(**fields)


def _emptiness(cleaned: Cleaned) -> str | None:
    return "empty" if not cleaned.text or cleaned.text.isspace() else None


def _refuse_malformed(chunk: Chunk, document: Document, cleaned: Cleaned) -> None:
    if cleaned.first_invalid is not None:
        problem, place = "malformed UTF-8", document.place
        if chunk.format not in RECORD_FORMATS:  # in a record, escapes hide the exact byte: give the record's beginning
            place += cleaned.first_invalid
    elif document.reason in ("malformed_record", "unfinished_page"):
        problem, place = document.reason.replace("_", " "), document.place
    else:
        return
    raise ConfigError(f"strict: {chunk.source.path} has {problem} at byte {place}; fix the file, or omit --strict")


@lru_cache(maxsize=1)
def load_tools(output: Path, sentences: Sentences) -> tuple[WordPiece, Punkt | None]:
    """Returns an output folder's tokenizer and, unless each line is a sentence, its Punkt model; cached per process."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers already use all cores
    punkt = None if sentences == "line" else Punkt(load_model(output / PUNKT_NAME))
    return WordPiece.load(output / TOKENIZER_NAME), punkt


@lru_cache(maxsize=1)
def load_curator(output: Path, config: BuildConfig) -> Curator:
    """Returns the steps of curation that a configuration asks for; cached per process."""
    is_kept = language_test(config.keep_language, config.language_threshold) if config.keep_language else None
    contamination = Contamination(output / WORK_NAME) if config.evaluation_sets else None
    return Curator(config.filter, is_kept, contamination)


def _tokenize(
    texts: Sequence[Text], tokenizer: WordPiece, punkt: Punkt | None, *, marks: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the token ids of each text, and the number of ids in each of its sentences."""
    documents = [split_sentences(text.cleaned.text, punkt, marks=marks) for text in texts]
    sentences = [sentence for document in documents for sentence in document]
    # encode in batches to bound memory
    ends = np.cumsum([len(sentence) for sentence in sentences])
    cuts = np.flatnonzero(np.diff(ends // _AT_ONCE)) + 1
    encoded = [tokenizer.encode(sentences[start:end]) for start, end in pairwise([0, *cuts, len(sentences)])]
    ids, lengths = (np.concatenate(arrays) for arrays in zip(*encoded, strict=True))
    sentence_ends = np.cumsum([len(document) for document in documents])
    token_ends = np.concatenate(([0], np.cumsum(lengths)))[sentence_ends]
    return zip(np.split(ids, token_ends[:-1]), np.split(lengths, sentence_ends[:-1]), strict=True)
