"""What a shard folder holds, with checksums: `manifest.json`, written last: it means complete."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationError

from data_prep.config import ConfigError, StrictConfig
from data_prep.formats import Boundary
from data_prep.sentences import Sentences
from data_prep.sequences import Builder, Packing
from data_prep.shards import write_atomically
from data_prep.tokens import SpecialTokens

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
HELD_OUT_NAME = "held_out"


Dedup = Literal["none", "exact"]


class BuildConfig(StrictConfig):
    """Everything that decides the shards' bytes besides the text."""

    seq_length: int
    mask_copies: int
    ngram: tuple[float, ...]
    packing: Packing
    builder: Builder
    documents: Boundary
    text_column: str
    min_document_length: int
    dedup: Dedup
    held_out: float
    seed: int
    chunk_mb: float
    tokenizer_sha256: str
    sentences: Sentences
    punkt: Literal["given", "learned", "none"]
    punkt_sha256: str


class ShardEntry(StrictConfig):
    """One shard."""

    name: str
    """Prefix of its files."""
    chunk: str
    """Key of the text it was made from."""
    sequences: int
    tokens: int
    """Special tokens included."""
    word_pieces: int
    unknown: int
    """[UNK] among the word pieces."""
    ngrams: tuple[int, ...]
    """How often an n-gram of 1, 2, ... words was drawn for the masks."""
    sizes: dict[str, int]
    """Bytes of each file."""
    files: dict[str, str]
    """The sha256 of each file."""


class Ledger(StrictConfig):
    """Where one kind of thing went: read = train + held_out + everything dropped."""

    read: int = 0
    train: int = 0
    held_out: int = 0
    dropped: dict[str, int] = {}
    """By reason."""

    def __add__(self, other: Self) -> "Ledger":
        return Ledger(
            read=self.read + other.read,
            train=self.train + other.train,
            held_out=self.held_out + other.held_out,
            dropped=_add_counts(self.dropped, other.dropped),
        )

    @property
    def balances(self) -> bool:
        """Whether nothing is unaccounted for."""
        return self.read == self.train + self.held_out + sum(self.dropped.values())


class Share(StrictConfig):
    """What came from one input."""

    documents: int = 0
    characters: int = 0
    word_pieces: int = 0

    def __add__(self, other: Self) -> "Share":
        return Share(**{name: getattr(self, name) + getattr(other, name) for name in Share.model_fields})


class Books(StrictConfig):
    """The accounts of a build, held-out text included."""

    documents: Ledger = Ledger()
    characters: Ledger = Ledger()
    """Code points of the documents as decoded: without what holds them (tags, JSON), before NFC."""
    word_pieces: Ledger = Ledger()
    """Of the documents that came as far as the tokenizer."""
    invalid_utf8: int = 0
    """Malformed byte sequences, each replaced by U+FFFD."""
    normalized_documents: int = 0
    """Documents that NFC changed."""
    cut_documents: int = 0
    """Times a document too long for memory was made two."""
    cut_lines: int = 0
    """Times a line too long for a sentence was made two."""
    inputs: dict[str, Share] = {}
    """The mixture: what the shards have of each input, training and held out."""

    def __add__(self, other: Self) -> "Books":
        sums = {name: getattr(self, name) + getattr(other, name) for name in Books.model_fields if name != "inputs"}
        names = self.inputs.keys() | other.inputs.keys()
        shares = {name: self.inputs.get(name, Share()) + other.inputs.get(name, Share()) for name in sorted(names)}
        return Books(**sums, inputs=shares)

    @property
    def balance(self) -> bool:
        """Whether nothing is unaccounted for."""
        return self.documents.balances and self.characters.balances and self.word_pieces.balances


class Totals(StrictConfig):
    """Sums over a folder's shards."""

    sequences: int
    tokens: int
    word_pieces: int
    unknown_share: float
    """[UNK] among word pieces."""
    padding_share: float
    """Of sequences x seq_length."""
    ngrams: tuple[int, ...]


class Manifest(StrictConfig):
    """`manifest.json`."""

    format_version: int
    config: BuildConfig
    seed: int
    seq_length: int
    mask_copies: int
    vocab_size: int
    tokenizer_sha256: str
    special_tokens: SpecialTokens
    versions: dict[str, str]
    inputs: dict[str, int]
    """Bytes on disk of every input file, by its key."""
    books: Books
    totals: Totals
    shards: tuple[ShardEntry, ...]


def sum_shards(shards: Iterable[ShardEntry], seq_length: int, ngram_sizes: int) -> Totals:
    """The totals of a folder's shards."""
    sequences = tokens = word_pieces = unknown = 0
    ngrams = [0] * ngram_sizes
    for shard in shards:
        sequences += shard.sequences
        tokens += shard.tokens
        word_pieces += shard.word_pieces
        unknown += shard.unknown
        ngrams = [sum(pair) for pair in zip(ngrams, shard.ngrams, strict=True)]
    return Totals(
        sequences=sequences,
        tokens=tokens,
        word_pieces=word_pieces,
        unknown_share=unknown / max(1, word_pieces),
        padding_share=1 - tokens / max(1, sequences * seq_length),
        ngrams=tuple(ngrams),
    )


def load_manifest(folder: Path) -> Manifest:
    """Reads a complete shard folder's manifest.

    Raises:
        ConfigError: the folder is not there or not complete, or was written in another format.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        state = "is not complete: it has no manifest.json" if folder.is_dir() else "does not exist"
        raise ConfigError(f"{folder} {state}; run data_prep/build_shards.py --output {folder}")
    try:
        values = json.loads(path.read_bytes())
        if values.get("format_version") != FORMAT_VERSION:
            raise ConfigError(
                f"{path}: format_version is {values.get('format_version')}, expected {FORMAT_VERSION}; "
                "build the shards again"
            )
        return Manifest.model_validate(values)
    except (ValueError, AttributeError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path}: damaged ({reason}); delete it and run data_prep/build_shards.py again") from None


def save_manifest(manifest: Manifest, folder: Path) -> None:
    """Writes `manifest.json`, which declares the folder complete."""
    write_atomically(folder / MANIFEST_NAME, (manifest.model_dump_json(indent=1) + "\n").encode())


def _add_counts(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    return {key: left.get(key, 0) + right.get(key, 0) for key in sorted(left.keys() | right.keys())}
