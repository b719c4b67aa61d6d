"""Takes a chunk's documents in: reads, cleans, sorts them, and keeps the books of what became of each."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from data_prep.chunks import Chunk, Piece
from data_prep.cleaning import Cleaned, clean, decode
from data_prep.formats import RECORD_FORMATS, Document, Reading
from data_prep.manifest import Books, BuildConfig, Ledger, Share
from data_prep.records import HELD_OUT, TRAIN, PartEntry
from data_prep.sides import Side
from foundation.config import ConfigError

_BATCH = 1 << 20  # characters of a batch
_WEIGHT = 256  # characters that a document counts beside its text: its objects take that much however short it is


@dataclass
class Text:
    """A document on its way, and the input it came from."""

    origin: str
    document: Document
    cleaned: Cleaned


class Intake:
    """Takes a chunk's documents in, and keeps the books of those that go no further."""

    def __init__(self, chunk: Chunk, config: BuildConfig, strict: bool) -> None:
        self._chunk, self._config, self._strict = chunk, config, strict
        self._reading = Reading(config.documents, config.text_column)
        self._documents: Counter[str] = Counter()  # dropped, by reason
        self._characters: Counter[str] = Counter()  # removed or dropped, by reason
        self._read: Counter[str] = Counter()
        self._repairs: Counter[str] = Counter()
        self._shares: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def batches(self) -> Iterator[list[Text]]:
        """The documents that are used, cleaned, some at a time."""
        batch: list[Text] = []
        size = 0
        for text in self._used():
            batch.append(text)
            size += len(text.cleaned.text) + _WEIGHT
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _used(self) -> Iterator[Text]:
        number = -1
        for piece in self._chunk.pieces:
            self._repairs["cut_documents"] += piece.cut
            for document in piece.documents(self._reading):
                number += 1
                reason = document.reason or ("duplicate" if number in self._chunk.duplicates else None)
                cleaned = decode(document.content) if reason else clean(document.content, wikitext=document.wikitext)
                self._count(cleaned, document)
                if self._strict:
                    _refuse_malformed(piece, document, cleaned)
                if not reason and (not cleaned.text or cleaned.text.isspace()):
                    reason = "empty"
                elif not reason and len(cleaned.text) < self._config.min_document_length:
                    reason = "short"
                if reason:
                    self._drop(reason, cleaned)
                else:
                    yield Text(piece.source.origin, document, cleaned)

    def _count(self, cleaned: Cleaned, document: Document) -> None:
        self._read["documents"] += 1
        self._read["characters"] += cleaned.read
        self._characters.update(cleaned.removed)
        self._repairs["invalid_utf8"] += cleaned.invalid_utf8
        self._repairs["normalized_documents"] += cleaned.normalized
        self._repairs["cut_lines"] += cleaned.cut_lines
        self._repairs["cut_documents"] += document.cut

    def _drop(self, reason: str, cleaned: Cleaned) -> None:
        self._documents[reason] += 1
        self._characters[reason] += cleaned.kept

    def enter(self, text: Text, ids: np.ndarray, sentence_lengths: np.ndarray, sides: Mapping[str, Side]) -> None:
        """Sends a tokenized document to its side.

        By its content alone: two equal documents never stand on different sides, whatever the seed.
        """
        if not len(ids):
            self._drop("empty", text.cleaned)
            return
        draw = int.from_bytes(text.document.digest) / 2**64
        sides[HELD_OUT if draw < self._config.held_out else TRAIN].add(ids, sentence_lengths, text.cleaned.kept)
        self._read["word_pieces"] += len(ids)
        self._shares[text.origin].update(documents=1, characters=text.cleaned.kept, word_pieces=len(ids))

    def books(self, sides: Mapping[str, Side], parts: Mapping[str, PartEntry | None]) -> Books:
        """What was read beside what the shards get."""
        in_shards = {side: part.word_pieces if part else 0 for side, part in parts.items()}
        truncated = 0
        if self._config.builder == "electra":
            truncated = self._read["word_pieces"] - sum(in_shards.values())
        return Books(
            documents=Ledger(
                read=self._read["documents"],
                train=sides[TRAIN].documents,
                held_out=sides[HELD_OUT].documents,
                dropped=_positive(self._documents),
            ),
            characters=Ledger(
                read=self._read["characters"],
                train=sides[TRAIN].characters,
                held_out=sides[HELD_OUT].characters,
                dropped=_positive(self._characters),
            ),
            word_pieces=Ledger(
                read=self._read["word_pieces"],
                train=in_shards[TRAIN],
                held_out=in_shards[HELD_OUT],
                dropped=_positive(Counter(truncated=truncated)),
            ),
            inputs={origin: Share(**share) for origin, share in sorted(self._shares.items())},
            **self._repairs,
        )


def _refuse_malformed(piece: Piece, document: Document, cleaned: Cleaned) -> None:
    if cleaned.first_invalid is not None:
        problem, place = "malformed UTF-8", document.place
        if piece.format not in RECORD_FORMATS:  # in a record, escapes hide the byte: its beginning must do
            place += cleaned.first_invalid
    elif document.reason in ("malformed_record", "unfinished_page"):
        problem, place = document.reason.replace("_", " "), document.place
    else:
        return
    raise ConfigError(
        f"strict: {piece.source.path} has {problem} at byte {place}; mend the file, or leave --strict out"
    )


def _positive(counts: Counter[str]) -> dict[str, int]:
    return {reason: count for reason, count in sorted(counts.items()) if count}
