"""Turns text files into training shards: sentences, word pieces, sequences and n-gram masks.

Run the same command again to resume. Under mpirun, the ranks share the work:

    python data_prep/build_shards.py --input data/raw --output data/wikibooks --vocab data/vocab
    mpirun -np 16 python data_prep/build_shards.py
"""

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
from pydantic import Field, field_validator

from data_prep.building import make_shards
from data_prep.curation.contamination import Index, make_index
from data_prep.curation.curator import language_test
from data_prep.curation.rules import FILTERS
from data_prep.defaults import RAW, SHARDS, VOCAB, require_text, require_vocab
from data_prep.manifest import (
    LESS_PADDING,
    MOST_PADDING,
    Books,
    BuildConfig,
    Choices,
    Manifest,
    enough_to_hold_out,
    warn_of_padding,
)
from data_prep.output import PLAN, BuildPlan, finish, locked, open_plan, prepare, refuse_another, save_record
from data_prep.pipeline import build_shard, load_tools
from data_prep.planning import measured_size, plan_shards
from data_prep.reading import sample_chunks, sample_documents
from data_prep.sentences import (
    MARKS,
    PunktModel,
    Sentences,
    find_model,
    load_model,
    sample_by_content,
)
from data_prep.sequences import TokenStream, build_sequences
from data_prep.sources import Source, find_sources
from data_prep.tokens import SubwordTokenizer, open_tokenizer
from data_prep.workers import Pool, start_pool
from electra_sampler.foundation.command_line import Group, Metavar, print_warning, printable, run_script
from electra_sampler.foundation.config import ConfigError, StrictConfig, counted, one_of, refuse
from electra_sampler.foundation.machine import cores
from electra_sampler.foundation.progress import duration

_SAMPLE = 1_000_000  # bytes sampled by a dry run
_PUNKT_SAMPLE = 4_000_000  # bytes read for Punkt
_PUNKT_TRAINED = 500_000  # characters of them to train Punkt on, in 1 s; twice as many would move .4% of the ends
_FEW = 20  # documents
_SHORT = 500  # characters: median paragraph in 53 of 54 novels is at most 316; a median article is far longer


class _Places(StrictConfig):
    """The options for input and output folders, which come first in `--help`."""

    input: Annotated[tuple[Path, ...], Group("input and output")] = (RAW,)
    """files, folders, quoted globs, hub:OWNER/NAME[:CONFIG][@REVISION]"""
    output: Path = SHARDS
    """shard folder to make"""
    vocab: str = str(VOCAB)
    """vocab.txt, tokenizer folder or hub name"""
    sentences: Sentences = "punkt"
    """marks: punkt and other scripts' end marks; line: text has one per line"""
    punkt: Path | None = None
    """folder of a Punkt model (default: train one)"""


class BuildOptions(Choices, _Places):
    """The command line of `build_shards.py`."""

    takes_any_name = True

    decontaminate: Annotated[tuple[str, ...], Group("web text"), Metavar("SET")] = ()
    """drop documents that share an n-gram with these sets: FILE[:FIELD,FIELD], glue=DIR, squad=DIR, blimp=DIR"""
    workers: Annotated[int, Group("the build")] = Field(default_factory=cores, ge=1, le=4096)
    """maximum number of processes; does not change the result (one per core)"""
    dry_run: bool = False
    """check everything, estimate time and disk space, write nothing"""

    @field_validator("filter")
    @classmethod
    def _are_filters(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in names if name not in FILTERS]:
            raise ValueError(f"got {unknown[0]!r}, {one_of(unknown[0], FILTERS)}")
        return tuple(name for name in FILTERS if name in names)


def main(options: BuildOptions) -> int:
    """Builds the shards, or prints an estimate of time and disk space; returns the exit code."""
    with start_pool(options.workers) as pool:
        if pool is None:
            return 0
        refuse(
            f"output: {options.output} lies inside the input {given}; choose another folder"
            for given in options.input
            if Path(os.path.realpath(options.output)).is_relative_to(os.path.realpath(given)) and given.exists()
        )
        require_text(options.input)
        sources = find_sources(options.input)
        require_vocab(options.vocab, options.input)
        tokenizer = open_tokenizer(options.vocab)
        if options.keep_language:
            language_test(options.keep_language, options.language_threshold)
        index = make_index(options.decontaminate, options.decontaminate_ngram) if options.decontaminate else None
        if index is not None:
            print(
                f"decontamination: {counted(len(index.sets), 'set')}, {counted(index.texts, 'text')}, of which "
                f"{index.short:,} have fewer than {options.decontaminate_ngram} words and cannot be detected"
            )
        if options.packing == "documents":
            _warn_of_short_documents(options, sources, tokenizer)
        if options.dry_run:
            print(_estimate(options, sources, tokenizer, index, pool.size), "nothing was written", sep="\n")
            return 0
        try:
            _build(options, sources, tokenizer, index, pool)
        except BrokenExecutor as error:
            print(
                f"build_shards: stopped: {printable(str(error))}; fix the cause and run the same command to resume",
                file=sys.stderr,
            )
            return 1
    return 0


def _warn_of_short_documents(options: BuildOptions, sources: Sequence[Source], tokenizer: SubwordTokenizer) -> None:
    """Warns when documents seem to be paragraphs, or rows of one sentence, each padded to its own sequence."""
    texts = list(sample_documents(sources, _SAMPLE, options.reading))
    if len(texts) < _FEW or median(map(len, texts)) >= _SHORT:
        return
    ids, counts = tokenizer.encode(texts)
    stream = TokenStream(ids, ~tokenizer.continuation[ids], np.cumsum(counts), np.cumsum(counts))
    special, random = tokenizer.special, np.random.default_rng(0)
    lengths = build_sequences(stream, options.seq_length, options.packing, special.cls, special.sep, random)[1]
    padding = 1 - lengths.mean() / options.seq_length
    if padding > MOST_PADDING:
        print_warning(
            f"half of {len(texts):,} sampled documents have at most {median(map(len, texts)):,.0f} characters, and each"
            f" is padded to its own sequence: {padding:.1%} would be padding; use {LESS_PADDING}"
        )


def _build(
    options: BuildOptions, sources: list[Source], tokenizer: SubwordTokenizer, index: Index | None, pool: Pool
) -> None:
    started = time.monotonic()
    with locked(options.output):
        earlier = open_plan(options.output)
        tasks = plan_shards(sources, 1e6 * options.shard_mb)
        pool.start(len(tasks))
        punkt = _punkt(options, sources, _PUNKT_SAMPLE)
        plan = _plan(options, sources, tokenizer, punkt, index)
        if earlier is not None:
            refuse_another(plan, earlier, options.output)
        save_record(options.output, PLAN, plan)
        prepare(options.output, tokenizer, punkt, index)
        make_shards(options.output, plan.config, tasks, pool)
        manifest = finish(options.output, plan, [shard.name for task in tasks for shard in task], tokenizer)
    print(f"{printable(str(options.output))}: {_summary(manifest)}, {duration(max(1, time.monotonic() - started))}")
    _warn_of_encoding(manifest.books)
    warn_of_padding(options.output, manifest)
    documents = manifest.books.documents
    if options.held_out and not documents.held_out:
        remedy = (
            f"build into another --output with --held_out {enough_to_hold_out(documents.train):g}"
            if documents.train > 1
            else "with a single document, training runs without held-out text"
        )
        print(f"no document was held out, because the corpus is small; {remedy}")


def _punkt(options: BuildOptions, sources: Sequence[Source], sample: int) -> PunktModel | None:
    """Returns the given Punkt model, else one trained on `sample` bytes of the text; None if each line is a sentence.

    A resumed build trains it again, to notice that the text has changed.
    """
    if options.sentences == "line":
        return None
    if options.punkt is not None:
        return load_model(find_model(options.punkt))
    texts = list(sample_documents(sources, sample, options.reading))
    if options.sentences == "punkt":
        _warn_of_marks(texts)
    return PunktModel.trained(sample_by_content(texts, _PUNKT_TRAINED))


def _warn_of_marks(texts: Sequence[str]) -> None:
    """Warns if most sentences of the sample end with marks that Punkt does not know."""
    unknown = Counter(mark for text in texts for mark in MARKS.findall(text))
    if unknown.total() > sum(text.count(mark) for text in texts for mark in ".?!"):
        commonest = " ".join(mark for mark, _ in unknown.most_common(3))
        print_warning(f"most sentences of a sample end with {commonest}, which Punkt ignores; use --sentences marks")


def _warn_of_encoding(books: Books) -> None:
    """Warns if more than one in 10,000 characters was malformed: text of the web in UTF-8 has far fewer."""
    if books.invalid_utf8 > 1e-4 * books.characters.read:
        print_warning(
            f"{books.invalid_utf8:,} of {books.characters.read:,} characters were not UTF-8 and became U+FFFD; convert "
            "the files that hold them (iconv -f LATIN1 -t UTF-8) and build into another --output"
        )


def _plan(
    options: BuildOptions,
    sources: Sequence[Source],
    tokenizer: SubwordTokenizer,
    punkt: PunktModel | None,
    index: Index | None,
) -> BuildPlan:
    config = BuildConfig(
        **options.model_dump(include={"sentences", *Choices.model_fields} - {"ngram"}),
        ngram=tuple(chance / sum(options.ngram) for chance in options.ngram),
        tokenizer_sha256=tokenizer.sha256(),
        punkt="none" if punkt is None else "learned" if options.punkt is None else "given",
        punkt_sha256="" if punkt is None else punkt.sha256(),
        evaluation_sets=() if index is None else index.sets,
    )
    packages = ("numpy", "regex", "tokenizers", *(("py3langid",) if options.keep_language else ()))
    versions = {name: version(name) for name in packages} | {"python": ".".join(map(str, sys.version_info[:2]))}
    return BuildPlan(config=config, versions=versions, inputs={source.key: source.size for source in sources})


def _estimate(
    options: BuildOptions, sources: Sequence[Source], tokenizer: SubwordTokenizer, index: Index | None, workers: int
) -> str:
    """Returns estimates of a build's files, shards, time and disk space, one per line, by building a sample.

    Raises:
        ConfigError: the input cannot be read, or there is no text in the sample.
    """
    punkt = _punkt(options, sources, _SAMPLE)
    config = _plan(options, sources, tokenizer, punkt, index).config
    chunks = list(sample_chunks(sources, _SAMPLE, options.reading))
    sample = sum(chunk.size for chunk in chunks)
    if not sample:
        raise ConfigError("dry_run: found no text in a sample of the input; run without --dry_run to read all of it")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, tokenizer, punkt, index)
        load_tools(folder, config)
        started = time.monotonic()
        record = build_shard("shard-00000", "", iter(chunks), {}, config, folder)
        seconds = time.monotonic() - started
    _warn_of_encoding(record.books)
    written = sum(entry.size for entry in (record.train, record.held_out) if entry)
    tasks = plan_shards(sources, 1e6 * options.shard_mb)
    workers = min(workers, len(tasks))
    size = sum(source.size for source in sources)
    text = size * sample / sum(chunk.size * chunk.source.size / measured_size(chunk.source)[0] for chunk in chunks)
    return (
        f"{counted(len(sources), 'file')}, {size / 1e6:,.1f} MB on disk, about {text / 1e6:,.1f} MB of text\n"
        f"about {counted(sum(map(len, tasks)), 'shard')}\n"
        f"about {duration(max(1, text * seconds / sample / workers))} with {counted(workers, 'worker')} at "
        f"{sample / seconds / 1e6:.1f} MB/s each\nabout {text * written / sample / 1e6:,.1f} MB of shards"
    )


def _summary(manifest: Manifest) -> str:
    totals, books, documents = manifest.totals, manifest.books, manifest.books.documents
    dropped = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in documents.dropped.items())
    malformed = f", {counted(books.invalid_utf8, 'malformed character')}" if books.invalid_utf8 else ""
    return (
        f"{documents.train + documents.held_out:,} of {counted(documents.read, 'document')} kept "
        f"({documents.held_out:,} held out; dropped: {dropped or 'none'}){malformed}, "
        f"{totals.word_pieces:,} word pieces, {counted(totals.sequences, 'sequence')} in "
        f"{counted(len(manifest.shards), 'shard')}"
    )


if __name__ == "__main__":
    run_script(main)
