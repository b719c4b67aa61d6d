"""What a shard folder holds, with checksums: `manifest.json`, written last: it means complete."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from data_prep.formats import Boundary
from data_prep.sentences import Sentences
from data_prep.sequences import Builder, Packing
from data_prep.tokens import LARGEST_VOCABULARY, SpecialTokens
from foundation.config import ConfigError, StrictRecord
from foundation.files import sealed, unsealed, write_if_other

FORMAT_VERSION: Literal[2] = 2
_VERSION = re.compile(rb'\{\s*"format_version": (\d{1,9}),')  # the first key after the seal
MANIFEST_NAME = "manifest.json"
HELD_OUT_NAME = "held_out"


Dedup = Literal["none", "exact"]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class BuildConfig(StrictRecord):
    """Everything that decides the shards' bytes besides the text."""

    seq_length: int = Field(ge=8, le=65_535)
    mask_copies: int = Field(ge=1, le=255)
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
    shard_mb: float
    """0: a shard per chunk, as in format 1."""
    tokenizer_sha256: str
    sentences: Sentences
    punkt: Literal["given", "learned", "none"]
    punkt_sha256: str


class ShardEntry(StrictRecord):
    """One shard."""

    name: str = Field(pattern=r"^shard-\d+$")
    """Prefix of its files."""
    first_chunk: Count
    last_chunk: Count
    """Number of the last chunk of text it was made from."""
    sequences: Count
    tokens: Count
    """Special tokens included."""
    word_pieces: Count
    unknown: Count
    """[UNK] among the word pieces."""
    ngrams: tuple[Count, ...]
    """How often an n-gram of 1, 2, ... words was drawn for the masks."""
    written: dict[str, tuple[Count, str]]
    """Size and sha256 of each file, by its suffix."""

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return {self.name + suffix: size for suffix, (size, _) in self.written.items()}

    @property
    def files(self) -> dict[str, str]:
        """The sha256 of each file."""
        return {self.name + suffix: digest for suffix, (_, digest) in self.written.items()}


class Ledger(StrictRecord):
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
            dropped={
                key: self.dropped.get(key, 0) + other.dropped.get(key, 0)
                for key in sorted(self.dropped.keys() | other.dropped.keys())
            },
        )

    @property
    def balances(self) -> bool:
        """Whether nothing is unaccounted for."""
        return self.read == self.train + self.held_out + sum(self.dropped.values())


class Share(StrictRecord):
    """What came from one input."""

    documents: int = 0
    characters: int = 0
    word_pieces: int = 0

    def __add__(self, other: Self) -> "Share":
        return Share(**{name: getattr(self, name) + getattr(other, name) for name in Share.model_fields})


class Books(StrictRecord):
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


class Totals(StrictRecord):
    """Sums over a folder's shards."""

    sequences: int
    tokens: int
    word_pieces: int
    unknown_share: float
    """[UNK] among word pieces."""
    padding_share: float
    """Of sequences x seq_length."""
    ngrams: tuple[int, ...]


class Manifest(StrictRecord):
    """`manifest.json`."""

    format_version: Literal[1, 2]
    config: BuildConfig
    vocab_size: int = Field(ge=1, le=LARGEST_VOCABULARY)
    special_tokens: SpecialTokens
    tokenizer_files: dict[str, str]
    """The sha256 of each file of the tokenizer; not known of format 1."""
    versions: dict[str, str]
    input_files: Count
    """Files the text came from."""
    books: Books
    totals: Totals
    shards: tuple[ShardEntry, ...]

    @property
    def seq_length(self) -> int:
        """Longest sequence in tokens."""
        return self.config.seq_length

    @property
    def mask_copies(self) -> int:
        """Masks drawn for each sequence."""
        return self.config.mask_copies

    @property
    def tokenizer_sha256(self) -> str:
        """Names the tokenizer by what decides its ids."""
        return self.config.tokenizer_sha256

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        special = self.special_tokens.model_dump().values()
        if not 0 <= min(special) <= max(special) < self.vocab_size or len(set(special)) < len(special):
            raise ValueError("its special tokens are not different ids of its vocabulary")
        sums = [sum(getattr(shard, name) for shard in self.shards) for name in ("sequences", "tokens")]
        if sums != [self.totals.sequences, self.totals.tokens]:
            raise ValueError("its totals are not the sums of its shards")
        return self


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
    """Reads a complete shard folder's manifest, of this format or of format 1.

    Raises:
        ConfigError: the folder is not there or not complete, or its manifest is damaged or of a newer format.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        state = "is not complete: it has no manifest.json" if folder.is_dir() else "does not exist"
        raise ConfigError(f"{folder} {state}; run data_prep/build_shards.py --output {folder}")
    try:
        content = path.read_bytes()
        if b'"format_version": 1,' in content[:64]:  # format 1 has no checksum, and begins with its version
            return Manifest.model_validate(_from_format_1(json.loads(content)))
        values = unsealed(content)
        version = _VERSION.match(values)
        if version and int(version[1]) > FORMAT_VERSION:
            raise ConfigError(
                f"{path}: format_version is {int(version[1])}, expected at most {FORMAT_VERSION}; it was written by a "
                "newer version of this software: use that one"
            )
        return Manifest.model_validate_json(values)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); see to the disk") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, ValidationError) as error:
        raise ConfigError(
            f"{path}: damaged ({_reason(error)}); run data_prep/build_shards.py with the same options, which repairs it"
        ) from None


def _from_format_1(values: dict[str, Any]) -> dict[str, Any]:
    """The values in the form of format 2: said once, and a shard per chunk."""
    known = {name: value for name, value in values.items() if name in Manifest.model_fields}
    for name in ("seed", "seq_length", "mask_copies", "tokenizer_sha256"):
        if values[name] != values["config"][name]:
            raise ValueError(f"{name} is {values[name]!r}, and {values['config'][name]!r} in config")
    shards = []
    for shard in values["shards"]:
        number = int(shard["name"].removeprefix("shard-"))
        own = {name: value for name, value in shard.items() if name in ShardEntry.model_fields}
        written = {
            name.removeprefix(shard["name"]): (size, shard["files"][name]) for name, size in shard["sizes"].items()
        }
        shards.append(own | {"first_chunk": number, "last_chunk": number, "written": written})
    return known | {
        "config": values["config"] | {"shard_mb": 0.0},
        "tokenizer_files": {},
        "input_files": len(values["inputs"]),
        "shards": shards,
    }


def _reason(error: Exception) -> str:
    """The error in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}" if place else str(first["msg"]).removeprefix("Value error, ")
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def save_manifest(manifest: Manifest, folder: Path) -> None:
    """Writes `manifest.json`, which declares the folder complete."""
    write_if_other(folder / MANIFEST_NAME, sealed(manifest.model_dump(mode="json")))
