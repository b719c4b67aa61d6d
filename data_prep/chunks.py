"""Divides the input into units, which workers read, and each unit into chunks, the units of randomness.

A unit is a list of names and ranges. Rank 0 makes units from the sizes of files. It looks into large files only, at
their beginnings and where plain text may be cut. The worker that receives a unit reads and unpacks it, and cuts it into
chunks: sequences of pieces. The budget of bytes and the longest document bound the memory.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from data_prep.cleaning import clean
from data_prep.formats import BEGINNING, LONGEST_DOCUMENT, PARQUET, Reading
from data_prep.pieces import Cutter, Piece, Stretch, cut_plain, read
from data_prep.rows import hub_parts
from data_prep.sources import Source
from data_prep.unpacking import find_block, opened, packing_of, text_per_byte

_SAMPLED_FILES = 256  # each further file costs a seek and adds little
_FIRST_BLOCK = 5  # bytes from which the first block begins before; that of bzip2 follows a header of 4
_UNIT_BITS = 32  # low bits of a chunk's number, which hold the number of its unit


@dataclass(frozen=True)
class Chunk:
    """Documents that become at most one part per side, training and held out.

    `number` is that of its unit, plus 2^32 times its place in the unit.
    """

    number: int
    pieces: tuple[Piece, ...]
    duplicates: Mapping[int, str] = field(default_factory=dict)  # reasons to drop copies, by their index in the chunk

    @property
    def key(self) -> str:
        """Identifies the chunk's text wherever the input is stored; part of the seed of its random stream."""
        return f"{self.pieces[0].source.key}@{self.pieces[0].place}"

    def loaded(self) -> "Chunk":
        """Returns a copy of the chunk that holds its text, because the files may change or disappear later."""
        return replace(self, pieces=tuple(piece.loaded() for piece in self.pieces))

    def digest(self) -> str:
        """Digest of a loaded chunk: every byte of its text, and the source, bounds and format of each piece."""
        digest = hashlib.blake2b(digest_size=16)
        for piece in self.pieces:
            digest.update(f"{piece.format} {piece.source.key} {piece.place} {piece.end} {piece.cut}\n".encode())
            for row in piece.content if isinstance(piece.content, tuple) else (piece.content,):
                digest.update(b"\0" if row is None else b"\1" + len(row).to_bytes(8, "little"))
                digest.update(row or b"")
        return digest.hexdigest()

    @property
    def duplicates_digest(self) -> str:
        """Digest of the indices of the chunk's duplicate documents, and of the reasons of near copies."""
        numbers = " ".join(f"{n} {why}".removesuffix(" duplicate") for n, why in sorted(self.duplicates.items()))
        return hashlib.blake2b(numbers.encode(), digest_size=8).hexdigest()


def chunk_number(unit: int, place: int) -> int:
    """Returns the number of the chunk in a place of its unit: that of the unit if it is the first."""
    return place << _UNIT_BITS | unit


def place_of(chunk: int) -> tuple[int, int]:
    """Returns the number of a chunk's unit and its place in the unit; the corpus has chunks in this order."""
    return chunk & ((1 << _UNIT_BITS) - 1), chunk >> _UNIT_BITS


@dataclass(frozen=True)
class Unit:
    """One worker's task: consecutive pieces of plain text, and stretches of files that are not looked into yet."""

    number: int
    stretches: tuple[Piece | Stretch, ...]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(stretch.size for stretch in self.stretches)

    def chunks(self, budget: int, reading: Reading) -> Iterator[Chunk]:
        """Yields the unit's text in chunks of about `budget` bytes; only one is in memory at a time.

        Raises:
            ConfigError: a file is unreadable or damaged, or not in the format that it appears to have.
        """
        count, size = 0, 0
        held: list[Piece] = []
        for stretch in self.stretches:
            for piece in [stretch] if isinstance(stretch, Piece) else read(stretch, budget, reading):
                if held and size + piece.size > budget:
                    yield Chunk(chunk_number(self.number, count), tuple(held))
                    count, size = count + 1, 0
                    held = []
                held.append(piece)
                size += piece.size
        if held:
            yield Chunk(chunk_number(self.number, count), tuple(held))


def divide(sources: Sequence[Source], budget: int, reading: Reading) -> Iterator[Unit]:
    """Yields the input in units of about `budget` bytes on disk, or of one file that cannot be divided.

    Raises:
        ConfigError: a file is unreadable, or not in the format that it appears to have.
    """
    number, size = 0, 0
    held: list[Piece | Stretch] = []
    for stretch in chain.from_iterable(_stretches(source, budget, reading) for source in sources):
        if held and (size + stretch.size > budget or stretch.source.on_hub):
            yield Unit(number, tuple(held))
            number, size = number + 1, 0
            held = []
        held.append(stretch)
        size += stretch.size
    if held:
        yield Unit(number, tuple(held))


def _stretches(source: Source, budget: int, reading: Reading) -> Iterator[Piece | Stretch]:
    if source.on_hub:
        yield from (Stretch(source, part, part + 1) for part in range(hub_parts(source.path)))
    elif 0 < source.size <= budget:
        yield Stretch(source, 0, source.size)
    elif source.size:
        with opened(source.path) as file:
            beginning = file.read(BEGINNING)
            if beginning.startswith(PARQUET) or find_block(file, 0, _FIRST_BLOCK) is not None:
                starts = range(0, source.size, budget)
                yield from (Stretch(source, start, min(start + budget, source.size)) for start in starts)
            elif packing_of(file):
                yield Stretch(source, 0, source.size)
            else:
                yield from cut_plain(Cutter(source, beginning, budget, LONGEST_DOCUMENT, reading), file)


def sample_pieces(sources: Sequence[Source], size: int, reading: Reading) -> Iterator[Piece]:
    """Yields about `size` bytes of text, from the beginnings of files spread evenly over the corpus.

    Each sampled file gives at least one record. After long records, such as whole novels, files are skipped to keep
    the sample near its size.

    Raises:
        ConfigError: as `divide`.
    """
    files = sources[:: max(1, len(sources) // _SAMPLED_FILES)]
    budget = max(1, size // len(files))
    taken = 0
    for number, source in enumerate(files):
        if taken > 2 * budget * number:
            continue
        whole = Stretch(source, 0, 1 if source.on_hub else source.size)
        for piece in islice(read(whole, budget, reading, longest=budget), 1):
            taken += piece.size
            if isinstance(piece.content, bytes):
                share = text_per_byte(source.path)
                piece = replace(piece, disk_bytes=min(source.size, round(piece.size / share)))
            yield piece


def sample_documents(sources: Sequence[Source], size: int, reading: Reading) -> Iterator[str]:
    """Yields the cleaned text of each document in the sample that `sample_pieces` draws."""
    for piece in sample_pieces(sources, size, reading):
        for document in piece.documents(reading):
            if document.reason is None:
                yield clean(document.content, wikitext=document.wikitext).text
