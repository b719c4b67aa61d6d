"""Throughput of data preparation against two peers on the same real text.

    python bench/data_prep.py --input wiki_00 [--megatron Megatron-LM --nltk_data nltk_data]

Ours is a complete run of build_shards. The peers are Hugging Face's encode_batch (tokenization only) and Megatron-LM's
tools/preprocess_data.py --split-sentences, whose checkout the command line names (core_v0.14.0 runs without a GPU; it
needs `six`).

Each contender runs on a small text and on a large one: the difference gives its steady-state throughput, the small run
its start-up time. Throughput is given per second of wall-clock time and per second of CPU time; on a busy machine
trust CPU time. Without data/raw the quickstart's corpus is used, and without data/vocab a vocabulary is learned.
"""

import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from pydantic import Field

from data_prep.curation.rules import FILTERS
from data_prep.formats import Reading
from data_prep.manifest import load_manifest
from data_prep.masking import Masker
from data_prep.reading import sample_documents
from data_prep.sentences import PunktModel, find_model, sample_by_content, save_model
from data_prep.shards import IndexedFile
from data_prep.sources import find_sources
from data_prep.tokens import SubwordTokenizer, open_tokenizer
from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.config import ConfigError, StrictConfig

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "bench" / "peers"
PUNKT_SAMPLE, PUNKT_TRAINED = 4_000_000, 500_000  # bytes, as in build_shards
DEFAULT_INPUT, DEFAULT_VOCAB = Path("data/raw"), "data/vocab"
LITTLE = 0.2  # MB
SHARDS_PER_WORKER = 8
TURNS = 3  # one worker and several alternate, so that drift in the machine's speed affects both


class BenchOptions(StrictConfig):
    """The command line of the benchmark."""

    input: tuple[Path, ...] = (DEFAULT_INPUT,)
    """files, folders, quoted globs, as for build_shards"""
    vocab: str = DEFAULT_VOCAB
    """vocab.txt, tokenizer folder or hub name"""
    punkt: Path | None = None
    """folder of a Punkt model (default: learn one)"""
    megatron: Path | None = None
    """checkout of NVIDIA/Megatron-LM"""
    nltk_data: Path | None = None
    """NLTK's data folder, for Megatron-LM"""
    workers: int = Field(default=2, ge=1)
    """processes of each contender"""
    ours_mb: float = 128.0
    """MB of text for our builds"""
    peer_mb: float = 8.0
    """MB of text for the peers, the beginning of ours"""
    seq_length: int = 512
    """longest sequence in tokens"""


@dataclass(frozen=True)
class Text:
    """A text of some size for the benchmark, in each contender's input format; a folder has one file per worker."""

    folder: Path
    plain: Path
    lines: Path
    json_lines: Path
    megabytes: float


@dataclass(frozen=True)
class Speed:
    """Steady-state MB per second of wall-clock and of CPU time, and seconds of start-up."""

    clock: float
    processor: float
    start: float


Command = Callable[[Text], list[list[str]]]


def main(options: BenchOptions) -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        options = with_stand_ins(options, work)
        open_tokenizer(options.vocab).save(work / "tokenizer")
        little, part, much = write_texts(options, work)
        learned = prepare_punkt(options, work)
        print(
            f"{much.megabytes:.0f} MB of text for our build, its first {part.megabytes:.0f} MB for the "
            f"other tools, {options.workers} workers each"
        )
        if learned:
            print(f"learning Punkt, once per build, not included below: {learned:.1f} s")
        print(f"  {'':34}{'MB/s':>8}{'MB/cpu s':>10}{'start-up s':>12}")
        reference = measure("Hugging Face encode_batch only", hugging_face(options, work), little, part, options)
        speeds = {"Hugging Face": reference}
        for peer, command, environment in peers(options, work):
            speeds[peer] = measure(peer, command, little, part, options, environment)
        for label, extra in ours(options, work).items():
            speed = measure(label, build(options, work, extra), little, much, options)
            for peer, other in speeds.items():
                print(f"{'':36}{speed.clock / other.clock:8.1f}x{speed.processor / other.processor:9.1f}x  {peer}")
        whole = statistics.median(run(build(options, work, [])(much), None, options)[0] for _ in range(TURNS))
        ratio = much.megabytes / whole / reference.clock
        print(
            f"  {'whole build, Punkt learned':34}{much.megabytes / whole:8.2f}{'':10}{whole:12.1f}  from start to end"
        )
        print(f"{'':36}{ratio:8.1f}x{'':11}  Hugging Face")
        print(f"{'':36}{mask_share(work, options, much):8.0%}  of the build's CPU time is spent drawing masks")
        report_scaling(options, work, little, much)


def with_stand_ins(options: BenchOptions, work: Path) -> BenchOptions:
    """Makes a corpus and a vocabulary if the default ones do not exist; returns options that name them."""
    if options.input == (DEFAULT_INPUT,) and not DEFAULT_INPUT.exists():
        print(f"{DEFAULT_INPUT} does not exist: using the documentation of the installed packages instead", flush=True)
        corpus = ["electra_sampler/quickstart/corpus.py", "--output", work / "corpus", "--task", work / "task"]
        run([[sys.executable, *map(str, corpus)]], None, options)
        options = options.model_copy(update={"input": (work / "corpus",)})
    if options.vocab == DEFAULT_VOCAB and not Path(DEFAULT_VOCAB).exists():
        print(f"{DEFAULT_VOCAB} does not exist: learning a vocabulary from the text", flush=True)
        vocab = ["data_prep/train_vocab.py", "--output", work / "vocab", "--input", *options.input]
        run([[sys.executable, *map(str, vocab)]], None, options)
        options = options.model_copy(update={"vocab": str(work / "vocab")})
    return options


def report_scaling(options: BenchOptions, work: Path, little: Text, much: Text) -> None:
    """Prints the speed-up from one worker to several; the two are measured alternately."""
    ratios = []
    for _ in range(TURNS):
        one = measure("build_shards, 1 worker", build(options, work, given(work), workers=1), little, much, options)
        several = measure(
            f"build_shards, {options.workers} workers", build(options, work, given(work)), little, much, options
        )
        ratios.append((several.clock / one.clock, options.workers * several.processor / one.processor))
    clock, processor = (statistics.median(turn) for turn in zip(*ratios, strict=True))
    print(f"{'':36}{clock:8.2f}x wall-clock speed-up from 1 to {options.workers} workers, median of {TURNS}")
    print(f"{'':36}{processor:8.2f}x would be the most possible, if no worker ever waited (from CPU time per MB)")


def mask_share(work: Path, options: BenchOptions, much: Text) -> float:
    """Returns the CPU time of drawing all masks, as a fraction of the CPU time of a whole build by one process."""
    command = build(options, work, given(work), workers=1)(much)
    _, seconds = run(command, None, options)
    folder = Path(command[0][command[0].index("--output") + 1])
    manifest, tokenizer = load_manifest(folder), SubwordTokenizer.load(folder / "tokenizer")
    special, continuation = tokenizer.never_masked, tokenizer.continuation
    masker = Masker(manifest.seq_length, manifest.mask_copies, manifest.config.ngram, special, continuation)
    shards = [IndexedFile(folder / shard.name) for shard in manifest.shards]
    started = time.process_time()
    for shard in shards:
        masker.draw(np.array(shard.data), shard.lengths, np.random.Generator(np.random.Philox(0)))
    return (time.process_time() - started) / seconds


def write_texts(options: BenchOptions, work: Path) -> list[Text]:
    """Writes a small, a medium and a large text, without `<doc>` tags and without blank lines inside documents."""
    sources = find_sources(options.input)
    documents = sample_documents(sources, int(options.ours_mb * 1e6), Reading("blank_line", "text"))
    texts = [re.sub(r"\n\s*\n", "\n", document.strip()) for document in documents if document.strip()]
    size, ends = 0, {}
    for number, text in enumerate(texts, 1):
        size += len(text.encode()) + 2
        for megabytes in (LITTLE, options.peer_mb, options.ours_mb):
            if size <= megabytes * 1e6:
                ends[megabytes] = number
    if len(ends) < 3:
        raise ConfigError(f"input: {' '.join(map(str, options.input))} has too little text; give at least a few MB")
    return [
        write_text(texts[: ends[megabytes]], work / f"text-{number}", options.workers)
        for number, megabytes in enumerate((LITTLE, options.peer_mb, options.ours_mb))
    ]


def write_text(documents: list[str], folder: Path, workers: int) -> Text:
    text = Text(folder, folder / "plain", folder / "lines.txt", folder / "text.jsonl", 0.0)
    text.plain.mkdir(parents=True)
    records = [json.dumps({"text": document}) + "\n" for document in documents]
    for worker in range(workers):
        (text.plain / f"{worker}.txt").write_text("\n\n".join(documents[worker::workers]) + "\n", "utf-8")
    text.lines.write_text("\n".join(documents), "utf-8")
    text.json_lines.write_text("".join(records), "utf-8")
    return replace(text, megabytes=text.lines.stat().st_size / 1e6)


def prepare_punkt(options: BenchOptions, work: Path) -> float:
    """Saves the Punkt model for our builds; returns the seconds of learning it, or 0 if the options name one."""
    if options.punkt is not None:
        (work / "punkt").symlink_to(find_model(options.punkt).resolve())
        return 0.0
    started = time.perf_counter()
    sources = find_sources(options.input)
    texts = list(sample_documents(sources, PUNKT_SAMPLE, Reading("blank_line", "text")))
    save_model(PunktModel.trained(sample_by_content(texts, PUNKT_TRAINED)), work / "punkt")
    return time.perf_counter() - started


def given(work: Path) -> list[str]:
    return ["--punkt", str(work / "punkt")]


def ours(options: BenchOptions, work: Path) -> dict[str, list[str]]:
    """Returns the extra options of each of our builds, by label."""
    return {
        "build_shards": given(work),
        "build_shards --sentences line": ["--sentences", "line"],
        "build_shards --filter --dedup near": [*given(work), "--filter", *FILTERS, "--dedup", "near"],
    }


def build(options: BenchOptions, work: Path, extra: list[str], workers: int | None = None) -> Command:
    def command(text: Text) -> list[list[str]]:
        # one shard of the small text per worker, so that start-up includes every worker
        shard_mb = max(LITTLE / options.workers, text.megabytes / options.workers / SHARDS_PER_WORKER)
        output = tempfile.mkdtemp(dir=work)
        words = ["data_prep/build_shards.py", "--input", text.plain, "--output", output, "--vocab", work / "tokenizer"]
        words += ["--seq_length", options.seq_length, "--shard_mb", shard_mb, *extra]
        words += ["--workers", workers or options.workers]
        return [[sys.executable, *map(str, words)]]

    return command


def hugging_face(options: BenchOptions, work: Path) -> Command:
    script = [sys.executable, str(PEERS / "hugging_face.py"), str(work / "tokenizer" / "tokenizer.json")]
    return lambda text: [[*script, str(text.lines)]]


def peers(options: BenchOptions, work: Path) -> Iterator[tuple[str, Command, dict[str, str]]]:
    """Yields label, command and environment of Megatron-LM if its checkout was given."""
    vocab = str(work / "tokenizer" / "vocab.txt")
    if options.megatron is not None:
        folder = options.megatron.resolve()
        script = [sys.executable, "-W", "ignore", str(folder / "tools" / "preprocess_data.py")]
        script += ["--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", vocab]
        script += ["--split-sentences", "--workers", str(options.workers)]
        if options.nltk_data is not None:  # the tool looks for it in the home folder
            (work / "nltk_data").symlink_to(options.nltk_data.resolve())
        paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])

        def megatron(text: Text) -> list[list[str]]:
            words = ["--input", str(text.json_lines), "--output-prefix", str(text.folder / "megatron")]
            return [[*script, *words]] * 2  # its first run only splits sentences

        yield "Megatron-LM preprocess_data", megatron, {"PYTHONPATH": paths, "HOME": str(work)}


def measure(
    label: str,
    command: Command,
    little: Text,
    much: Text,
    options: BenchOptions,
    environment: dict[str, str] | None = None,
) -> Speed:
    """Runs a contender on both texts and prints its speed."""
    clock_0, processor_0 = run(command(little), environment, options)
    clock_1, processor_1 = run(command(much), environment, options)
    megabytes = much.megabytes - little.megabytes
    seconds, processor = clock_1 - clock_0, processor_1 - processor_0
    known = processor > seconds / 10  # else processes that were not waited for did the work
    speed = Speed(megabytes / seconds, megabytes / processor if known else math.nan, clock_0)
    print(f"  {label:34}{speed.clock:8.2f}{speed.processor:10.2f}{speed.start:12.1f}", flush=True)
    return speed


def run(commands: list[list[str]], environment: dict[str, str] | None, options: BenchOptions) -> tuple[float, float]:
    """Runs the commands one after the other; returns wall-clock and CPU seconds."""
    threads = {"RAYON_NUM_THREADS": str(options.workers), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "true"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    for command in commands:
        settings = {**os.environ, **threads, **(environment or {})}
        done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"{Path(command[-1]).name}: failed: {done.stderr.strip().splitlines()[-1]}")
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(run_command(main, BenchOptions, __doc__))
