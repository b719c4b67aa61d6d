"""`manifest.json`: the contents and checksums of a shard folder. Written last, it marks the folder as complete."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from data_prep.formats import Boundary, Reading
from data_prep.sentences import Sentences
from data_prep.sequences import Packing
from data_prep.tokens import LARGEST_VOCABULARY, SpecialTokens
from electra_sampler.foundation.command_line import Group, print_warning, printable
from electra_sampler.foundation.config import ConfigError, StrictConfig, StrictRecord
from electra_sampler.foundation.files import sealed, unsealed, write_if_other

FORMAT_VERSION: Literal[2] = 2
MANIFEST_NAME = "manifest.json"
HELD_OUT_NAME = "held_out"
RECORDS_NAME = "records"
"""The folder with the records of a build, complete or not."""
WORK_NAME = ".build"
"""The folder of the workers' temporary files; removed once the manifest is written."""


MOST_PADDING = 0.25
"""A larger share of padding causes a warning. Normal: .05; Wikipedia at length 512 with BERT's vocabulary: .10."""
LESS_PADDING = "--documents file if blank lines or rows only divide one text, such as a novel, else --packing full"
Dedup = Literal["none", "exact", "near"]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Number = Annotated[int, Field(ge=1, lt=1 << 63)]
_Share = Annotated[float, Field(ge=0, le=1)]


class Choices(StrictConfig):
    """The user's options that determine the shards' bytes."""

    seq_length: Annotated[int, Group("sequences and masks")] = Field(default=512, ge=8, le=65_535)
    """longest sequence in tokens"""
    mask_copies: int = Field(default=10, ge=1, le=255)
    """masks drawn for each sequence"""
    ngram: tuple[float, ...] = Field(default=(0.8, 0.1, 0.1), min_length=1, max_length=100)  # a number in a byte
    """chances of masking 1, 2, ... words at once"""
    packing: Packing = "documents"
    """full: sequences run across documents"""
    one_segment: bool = Field(default=False, exclude_if=lambda chosen: not chosen)  # written if chosen
    """only [CLS] A [SEP], never a second segment"""
    documents: Annotated[Boundary, Group("documents")] = "blank_line"
    """what ends a document in plain text; file: also join a file's JSON lines or rows"""
    text_column: str = "text"
    """text's key in JSON lines, column in Parquet"""
    dedup: Dedup = "none"
    """drop documents seen before; near: similar ones too"""
    held_out: float = Field(default=0.005, ge=0, lt=1)
    """share of documents never trained on"""
    filter: Annotated[tuple[str, ...], Group("web text")] = Field(default=(), exclude_if=lambda chosen: not chosen)
    """drop documents and lines by rules: gopher, c4, fineweb, or single rules"""
    keep_language: tuple[str, ...] = Field(default=(), exclude_if=lambda chosen: not chosen)
    """drop documents in other languages than these, such as en"""
    language_threshold: float = Field(default=0.5, ge=0, le=1, exclude_if=lambda chosen: chosen == 0.5)
    """least confidence in the detected language, from 0 to 1"""
    decontaminate_ngram: int = Field(default=13, ge=1, le=100, exclude_if=lambda chosen: chosen == 13)
    """n for --decontaminate, in words; 13 as in GPT-3"""
    seed: Annotated[int, Group("the build")] = 0
    """seed of every random choice"""
    shard_mb: float = Field(default=0.0, ge=0, le=16_000)
    """text per shard, in MB (0: an eighth of all text, within 6 to 64; more above 8 GB)"""

    @field_validator("ngram")
    @classmethod
    def _are_chances(cls, chances: tuple[float, ...]) -> tuple[float, ...]:
        if min(chances) < 0 or abs(sum(chances) - 1) > 1e-3:
            raise ValueError(f"got {' '.join(map(str, chances))}, expected chances that sum to 1, such as .8 .1 .1")
        return chances

    @property
    def reading(self) -> Reading:
        """The options for reading the input."""
        return Reading(self.documents, self.text_column)


class BuildConfig(Choices):
    """Everything besides the text that determines the shards' bytes."""

    tokenizer_sha256: str
    sentences: Sentences
    punkt: Literal["given", "learned", "none"]
    punkt_sha256: str
    evaluation_sets: tuple[tuple[str, str], ...] = Field(default=(), exclude_if=lambda sets: not sets)
    """Name and sha256 of each evaluation set that the text was decontaminated against."""


class ShardEntry(StrictRecord):
    """The manifest's entry for one shard: its files, checksums and counts."""

    name: str = Field(pattern=r"^shard-[0-9]{5,18}$")
    """Prefix of its files."""
    sequences: Number
    tokens: Number
    """Number of tokens, special tokens included."""
    word_pieces: Count
    unknown: Count
    """Number of [UNK] among the word pieces."""
    ngrams: tuple[Count, ...]
    """How often an n-gram of 1, 2, ... words was drawn for the masks."""
    written: dict[Annotated[str, Field(pattern=r"^(\.mask)?\.(bin|idx)$")], tuple[Count, str]] = Field(min_length=4)
    """Size and sha256 of each file, by its suffix."""

    @property
    def size(self) -> int:
        """Size of all files of the shard, in bytes."""
        return sum(size for size, _ in self.written.values())


class _Sums(StrictRecord):
    """Base of records of counts that are added up over shards."""

    def __add__(self, other: Self) -> Self:
        fields = type(self).model_fields
        return type(self)(**{name: _added(getattr(self, name), getattr(other, name)) for name in fields})


def _added(left: Any, right: Any) -> Any:
    """Returns the sum; dictionaries are added key by key, with sorted keys."""
    if not isinstance(left, dict):
        return left + right
    both = {key: _added(left[key], right[key]) for key in left.keys() & right.keys()}
    return dict(sorted((left | right | both).items()))


class Ledger(_Sums):
    """Accounts for all documents, characters or word pieces: read = train + held_out + the sum of dropped."""

    read: Count = 0
    train: Count = 0
    held_out: Count = 0
    dropped: dict[str, Count] = {}
    """Amounts dropped, by reason."""


class Share(_Sums):
    """The contribution of one of the user's inputs to a build: documents, characters and word pieces."""

    documents: Count = 0
    characters: Count = 0
    word_pieces: Count = 0


class Books(_Sums):
    """Counts of all text that a build read, held-out text included, and of what became of it."""

    documents: Ledger = Ledger()
    characters: Ledger = Ledger()
    """Code points of the decoded documents, without surrounding markup (tags, JSON), before NFC."""
    word_pieces: Ledger = Ledger()
    """Word pieces of the documents that reached the tokenizer."""
    invalid_utf8: Count = 0
    """Malformed byte sequences, each replaced by U+FFFD."""
    normalized_documents: Count = 0
    """Documents that NFC changed."""
    cut_documents: Count = 0
    """Number of cuts in documents that are too long for memory."""
    cut_lines: Count = 0
    """Number of cuts in lines that are too long for a sentence."""
    inputs: dict[str, Share] = {}
    """The mixture: the contribution of each input to the shards, training and held out."""

    @property
    def balances(self) -> bool:
        """True if everything read is accounted for, in all three ledgers."""
        ledgers = (self.documents, self.characters, self.word_pieces)
        return all(one.read == one.train + one.held_out + sum(one.dropped.values()) for one in ledgers)


class Totals(StrictRecord):
    """Counts summed over all shards of a folder."""

    sequences: Count
    tokens: Count
    word_pieces: Count
    unknown_share: _Share
    """Share of [UNK] among the word pieces."""
    padding_share: _Share
    """Share of padding in sequences x seq_length."""
    ngrams: tuple[Count, ...]


class Manifest(StrictRecord):
    """The content of `manifest.json`, which describes a complete shard folder."""

    format_version: Literal[2]
    config: BuildConfig
    vocab_size: int = Field(ge=1, le=LARGEST_VOCABULARY)
    special_tokens: SpecialTokens
    tokenizer_files: dict[Annotated[str, Field(pattern=r"^\w[\w.-]{0,99}$")], str] = Field(min_length=1)
    """The sha256 of each file of the tokenizer."""
    versions: dict[str, str]
    input_files: Count
    """Number of input files."""
    books: Books
    totals: Totals
    shards: tuple[ShardEntry, ...] = Field(min_length=1)

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
        """Checksum of everything that determines the tokenizer's ids."""
        return self.config.tokenizer_sha256

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        special = self.special_tokens.model_dump().values()
        if not 0 <= min(special) <= max(special) < self.vocab_size or len(set(special)) < len(special):
            raise ValueError("its special tokens are not distinct ids of its vocabulary")
        if self.totals != sum_shards(self.shards, self.seq_length, len(self.config.ngram)):
            raise ValueError("its totals are not the sums of its shards")
        if len({shard.name for shard in self.shards}) < len(self.shards):
            raise ValueError("two of its shards have the same name")
        return self


def warn_of_padding(folder: Path, manifest: Manifest) -> None:
    """Warns if too much of the shards is padding, which a GPU computes like text."""
    if (share := manifest.totals.padding_share) > MOST_PADDING:
        print_warning(
            f"{printable(str(folder))}: {share:.1%} of the sequences is padding, expected at most {MOST_PADDING:.0%}; "
            f"build into another --output with {LESS_PADDING}, or a shorter --seq_length"
        )


def enough_to_hold_out(documents: int) -> float:
    """Returns a share that probably holds out at least one of the documents, each of which is chosen at random."""
    return 0.005 if documents >= 1000 else round(max(0.1, 2 / max(4, documents)), 2)


def sum_shards(shards: Sequence[ShardEntry], seq_length: int, ngram_sizes: int) -> Totals:
    """Returns the counts of the shards, summed."""
    names = ("sequences", "tokens", "word_pieces", "unknown")
    sequences, tokens, word_pieces, unknown = (sum(getattr(shard, name) for shard in shards) for name in names)
    return Totals(
        sequences=sequences,
        tokens=tokens,
        word_pieces=word_pieces,
        unknown_share=unknown / max(1, word_pieces),
        padding_share=1 - tokens / max(1, sequences * seq_length),
        ngrams=tuple(map(sum, zip([0] * ngram_sizes, *(shard.ngrams for shard in shards), strict=True))),
    )


def load_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a complete shard folder.

    Raises:
        ConfigError: the folder is missing or incomplete, or its manifest is damaged or of another format.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        raise ConfigError(
            f"{folder} is not a complete shard folder: it has no manifest.json; run data_prep/build_shards.py "
            f"--output {folder}, or, if it holds text, with --input {folder} and another --output"
        )
    try:
        values = json.loads(unsealed(path.read_bytes()))
        version = values["format_version"]
        if version == FORMAT_VERSION or not isinstance(version, int):
            return Manifest.from_values(values)
    except (ConfigError, ValueError, TypeError, LookupError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ConfigError(
            f"{path}: damaged ({reason}); run data_prep/build_shards.py with the same options, which repairs it"
        ) from None
    raise ConfigError(
        f"{path}: format_version is {version}, expected {FORMAT_VERSION}; build the shards again into another folder, "
        "or use the version of this software that wrote them"
    )


def save_manifest(manifest: Manifest, folder: Path) -> None:
    """Writes `manifest.json`, which marks the folder as complete."""
    write_if_other(folder / MANIFEST_NAME, sealed(manifest.model_dump(mode="json")))
