"""Turns text files into training shards: sentences, word pieces, sequences and n-gram masks.

Run it again to go on where it stopped. Under mpirun the same command spreads over the ranks:

    python data_prep/build_shards.py --input data/raw --output data/wikibooks --vocab data/vocab
    mpirun -np 16 python data_prep/build_shards.py
"""

import sys
from pathlib import Path

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import os
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from importlib.metadata import version
from typing import Self

from pydantic import Field, field_validator, model_validator

from data_prep.chunks import Chunk, read_chunks, sample_documents
from data_prep.command_line import run_command
from data_prep.config import ConfigError, StrictConfig
from data_prep.duplicates import Duplicates, are_hashed, hash_chunk
from data_prep.estimate import SAMPLE, estimate
from data_prep.formats import Boundary, Reading
from data_prep.manifest import MANIFEST_NAME, BuildConfig, Dedup, Manifest, load_manifest
from data_prep.output import (
    Plan,
    clear_records,
    earlier_plan,
    finish,
    finished_record,
    locked,
    prepare,
    refuse_another,
)
from data_prep.pipeline import PUNKT_NAME, RECORDS_NAME, ChunkRecord, build_chunk
from data_prep.progress import Progress, duration
from data_prep.punkt import PunktModel
from data_prep.sentences import Sentences, find_model, load_model, model_sha256, train_model
from data_prep.sequences import Builder, Packing
from data_prep.sources import Source, find_sources
from data_prep.tokens import WordPiece, open_tokenizer
from data_prep.workers import Pool, start_pool

_PUNKT_SAMPLE = 4_000_000  # bytes: Punkt learns at 0.6 MB/s, and its lists hardly grow after a few megabytes
_DEFAULT_INPUT = Path("data/raw")
_DEFAULT_VOCAB = "data/vocab"


class BuildOptions(StrictConfig):
    """Options of build_shards."""

    input: tuple[Path, ...] = (_DEFAULT_INPUT,)
    """files, folders, globs, hub:OWNER/NAME[:CONFIG][@REVISION]"""
    output: Path = Path("data/wikibooks")
    """shard folder to make"""
    vocab: str = _DEFAULT_VOCAB
    """vocab.txt, tokenizer folder or hub name"""
    sentences: Sentences = "punkt"
    """line: the text has one a line already"""
    punkt: Path | None = None
    """folder of a Punkt model (default: learn one)"""
    documents: Boundary = "blank_line"
    """what ends a document in plain text"""
    text_column: str = "text"
    """text's key in JSON lines, column in Parquet"""
    min_document_length: int = Field(0, ge=0)
    """characters; shorter documents are dropped"""
    dedup: Dedup = "none"
    """exact: drop documents seen before"""
    strict: bool = False
    """refuse malformed UTF-8 and records"""
    seq_length: int = Field(512, ge=8, le=65_535)
    """longest sequence in tokens"""
    packing: Packing = "documents"
    """full: sequences run across documents"""
    builder: Builder = "lossless"
    """electra: truncate overflow as Google does"""
    mask_copies: int = Field(10, ge=1, le=255)
    """masks drawn for each sequence"""
    ngram: tuple[float, ...] = (0.8, 0.1, 0.1)
    """chances of masking 1, 2, ... words at once"""
    held_out: float = Field(0.005, ge=0, lt=1)
    """share of documents never trained on"""
    seed: int = 0
    """of every random choice"""
    chunk_mb: float = Field(16.0, gt=0, le=64)
    """text per shard, in MB"""
    workers: int = Field(os.cpu_count() or 1, ge=1)
    """processes; does not change the result"""
    dry_run: bool = False
    """check all, estimate time and disk, write nothing"""

    @property
    def reading(self) -> Reading:
        """How the input is read."""
        return Reading(self.documents, self.text_column)

    @property
    def chunk_bytes(self) -> int:
        """Text per shard."""
        return int(self.chunk_mb * 1e6)

    @field_validator("ngram")
    @classmethod
    def _sums_to_one(cls, chances: tuple[float, ...]) -> tuple[float, ...]:
        if not chances or min(chances) < 0 or abs(sum(chances) - 1) > 1e-3:
            raise ValueError(f"got {' '.join(map(str, chances))}, expected chances that sum to 1, such as .8 .1 .1")
        return tuple(chance / sum(chances) for chance in chances)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.builder == "electra" and self.packing != "documents":
            raise ValueError(f"packing: got {self.packing}, expected documents with --builder electra; leave one out")
        if self.sentences == "line" and self.punkt is not None:
            raise ValueError(f"punkt: got {self.punkt}, expected none with --sentences line; leave one out")
        return self


def main(options: BuildOptions) -> int:
    """Builds the shards, or says what building them would take."""
    with start_pool(options.workers) as pool:
        if pool is None:
            return 0
        sources = _find_sources(options)
        tokenizer = _open_tokenizer(options.vocab)
        if options.dry_run:
            punkt = _punkt(options, sources, None, SAMPLE)
            print(estimate(_plan(options, sources, tokenizer, punkt), sources, tokenizer, punkt, pool.size))
            print("nothing was written")
            return 0
        try:
            _build(options, sources, tokenizer, pool)
        except (OSError, BrokenExecutor) as error:
            print(f"build_shards: stopped: {error}; mend it and run the same command to go on", file=sys.stderr)
            return 1
    return 0


def _find_sources(options: BuildOptions) -> list[Source]:
    for given in options.input:
        if options.output.resolve().is_relative_to(given.resolve()) and given.exists():
            raise ConfigError(f"output: {options.output} lies inside the input {given}; choose another folder")
    if options.input == (_DEFAULT_INPUT,) and not _DEFAULT_INPUT.exists():
        raise ConfigError(
            f"input: {_DEFAULT_INPUT} does not exist; fill it by `make quickstart` (a small corpus of its "
            "own), copy or link text files there, or give --input PATH"
        )
    return find_sources(options.input)


def _open_tokenizer(vocab: str) -> WordPiece:
    if vocab == _DEFAULT_VOCAB and not Path(vocab).exists():
        raise ConfigError(
            f"vocab: {vocab} does not exist; give --vocab with a vocab.txt, a tokenizer folder or a hub "
            f"name, or train one: python data_prep/train_vocab.py --output {vocab}"
        )
    return open_tokenizer(vocab)


def _build(options: BuildOptions, sources: list[Source], tokenizer: WordPiece, pool: Pool) -> None:
    started = time.monotonic()
    with locked(options.output):
        earlier = earlier_plan(options.output)
        punkt = _punkt(options, sources, earlier, _PUNKT_SAMPLE)
        plan = _plan(options, sources, tokenizer, punkt)
        if earlier is not None:
            refuse_another(plan, earlier, options.output)
        if _is_complete(options.output):
            clear_records(options.output)
            print(f"{options.output} is complete already: {_summary(load_manifest(options.output))}")
            return
        prepare(options.output, plan, tokenizer, punkt)
        records = _build_chunks(options, plan.config, sources, pool)
        manifest = finish(options.output, plan, tokenizer, records)
    print(f"{options.output}: {_summary(manifest)}, {duration(time.monotonic() - started)}")
    if not any(record.held_out for record in records):
        print("no document was held out: the corpus is small; a larger --held_out sets some aside")


def _punkt(options: BuildOptions, sources: Sequence[Source], earlier: Plan | None, sample: int) -> PunktModel | None:
    """The model given, or the one that an earlier run of this build learned, or a new one; None if not needed."""
    if options.sentences == "line":
        return None
    if options.punkt is not None:
        return load_model(find_model(options.punkt))
    if earlier is not None and (options.output / PUNKT_NAME).is_dir():
        return load_model(find_model(options.output / PUNKT_NAME))
    return train_model(sample_documents(sources, sample, options.reading))


def _plan(options: BuildOptions, sources: Sequence[Source], tokenizer: WordPiece, punkt: PunktModel | None) -> Plan:
    shared = options.model_dump(include=set(BuildConfig.model_fields) - {"punkt"})
    config = BuildConfig(
        **shared,
        tokenizer_sha256=tokenizer.sha256(),
        punkt="none" if punkt is None else "learned" if options.punkt is None else "given",
        punkt_sha256="" if punkt is None else model_sha256(punkt),
    )
    versions = {name: version(name) for name in ("numpy", "nltk", "tokenizers")}
    versions["python"] = ".".join(platform.python_version_tuple()[:2])
    return Plan(config=config, versions=versions, inputs={source.key: source.size for source in sources})


def _build_chunks(
    options: BuildOptions, config: BuildConfig, sources: Sequence[Source], pool: Pool
) -> list[ChunkRecord]:
    duplicates = _find_duplicates(options, sources, pool) if config.dedup == "exact" else None
    records: list[ChunkRecord] = []
    sizes: dict[int, int] = {}
    with Progress(sum(source.size for source in sources), "shards") as progress:

        def unfinished() -> Iterator[Chunk]:
            for chunk in read_chunks(sources, options.chunk_bytes, options.reading):
                if duplicates is not None:
                    chunk = replace(chunk, duplicates=duplicates.of(chunk.number))
                record = finished_record(options.output, chunk, options.reading)
                if record is not None:
                    records.append(record)
                    progress.skip(chunk.disk_bytes)
                    continue
                sizes[chunk.number] = chunk.disk_bytes
                yield chunk

        for record in pool.run(build_chunk, unfinished(), config, options.output, options.strict):
            records.append(record)
            progress.advance(sizes.pop(record.number))
    return records


def _find_duplicates(options: BuildOptions, sources: Sequence[Source], pool: Pool) -> Duplicates:
    """The first pass over the input, which only hashes."""
    folder = options.output / RECORDS_NAME
    sizes: dict[int, int] = {}
    with Progress(sum(source.size for source in sources), "hashes") as progress:

        def unhashed() -> Iterator[Chunk]:
            for chunk in read_chunks(sources, options.chunk_bytes, options.reading):
                sizes[chunk.number] = chunk.disk_bytes
                if are_hashed(folder, chunk):
                    progress.skip(chunk.disk_bytes)
                else:
                    yield chunk

        for number in pool.run(hash_chunk, unhashed(), options.reading, folder):
            progress.advance(sizes[number])
    return Duplicates(folder, len(sizes))


def _is_complete(folder: Path) -> bool:
    return (folder / MANIFEST_NAME).is_file()


def _summary(manifest: Manifest) -> str:
    totals, books = manifest.totals, manifest.books
    dropped = "".join(f", {count:,} {reason.replace('_', ' ')}" for reason, count in books.documents.dropped.items())
    malformed = f", {books.invalid_utf8:,} malformed characters" if books.invalid_utf8 else ""
    return (
        f"{books.documents.read:,} documents ({books.documents.held_out:,} held out{dropped}){malformed}, "
        f"{totals.word_pieces:,} word pieces, {totals.sequences:,} sequences in {len(manifest.shards)} shards"
    )


if __name__ == "__main__":
    sys.exit(run_command(main, BuildOptions, __doc__))
