"""A small corpus, a vocabulary and built shards, shared by the tests of data preparation."""

import bz2
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from data_prep import workers
from data_prep.build_shards import BuildOptions, main
from data_prep.formats import Document, Reading
from data_prep.output import ShardRecord
from data_prep.pipeline import build_shard
from data_prep.planning import Shard, plan_shards
from data_prep.reading import CHUNK, Chunk, Reader
from data_prep.shards import IndexedWriter
from data_prep.sources import Source
from data_prep.tokens import SPECIAL_TOKENS
from tests.conftest import REPOSITORY

PARAGRAPHS = Reading()
SYLLABLES = ("ka", "lo", "mi", "ne", "ru", "so", "ta", "vu")


def random_document(random: np.random.Generator, sentences: int) -> str:
    """Sentences of random words, a few per line; some words need three pieces."""
    words = ["".join(random.choice(SYLLABLES, random.integers(1, 4))) for _ in range(sentences * 9)]
    texts = [" ".join(words[first : first + 9]).capitalize() + "." for first in range(0, len(words), 9)]
    return "\n".join(" ".join(texts[first : first + 3]) for first in range(0, sentences, 3))


@pytest.fixture(scope="session")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocab.txt with the special tokens, the syllables, their `##` forms and a full stop."""
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *SYLLABLES, *("##" + part for part in SYLLABLES), "."]) + "\n")
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight files of twelve documents, about 100 kB."""
    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(0)
    for number in range(8):
        documents = [random_document(random, int(random.integers(1, 60))) for _ in range(12)]
        (folder / f"part-{number}.txt").write_text("\n\n".join(documents) + "\n")
    return folder


@pytest.fixture(scope="session")
def options(corpus: Path, vocab: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildOptions:
    """Options of a build with several shards and a held-out part."""
    return BuildOptions(
        input=(corpus,),
        output=tmp_path_factory.mktemp("shards") / "built",
        vocab=str(vocab),
        seq_length=64,
        held_out=0.1,
        shard_mb=0.015,
        workers=1,
    )


@pytest.fixture(scope="session")
def built(options: BuildOptions) -> Path:
    """Output folder of that build; read-only for tests."""
    assert main(options) == 0
    return options.output


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that starts a pool of processes."""
    monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda *_: pytest.fail("a pool of processes was started"))


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that are built from now on, in this process."""
    names = []

    def build(name: str, *rest: Any) -> ShardRecord:
        names.append(name)
        return build_shard(name, *rest)

    monkeypatch.setattr("data_prep.building.build_shard", build)
    return names


def again(options: BuildOptions, output: Path, **changes: object) -> BuildOptions:
    """The options of the same build in another folder, with some changes."""
    return BuildOptions.model_validate(options.model_dump() | {"output": output} | changes)


@pytest.fixture(scope="session")
def formats(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Three folders with parts of the corpus, in every format: tables, wikis and text."""
    texts = [path.read_text().split("\n\n") for path in sorted(corpus.iterdir())]
    tables, wiki, text = (tmp_path_factory.mktemp(name, numbered=False) for name in ("tables", "wiki", "text"))
    parquet.write_table(pyarrow.table({"text": texts[0]}), tables / "a.parquet", row_group_size=5)
    (tables / "b.jsonl").write_text("\n".join(json.dumps({"text": one}) for one in texts[1]))
    extracted = "".join(f'<doc id="{n}" url="" title="">\n{one}\n</doc>\n' for n, one in enumerate(texts[2]))
    (wiki / "wiki_00").write_text(extracted)
    pages = "".join(f"<page><ns>0</ns><text>'''{one}'''</text></page>" for one in texts[3])
    (wiki / "dump.xml.bz2").write_bytes(bz2.compress(f"<mediawiki>{pages}</mediawiki>".encode()))
    plain = "\r\n\r\n".join(texts[4]).encode()
    (text / "a.txt.zst").write_bytes(pyarrow.compress(plain, "zstd", asbytes=True))
    return tables, wiki, text


def write_indexed(prefix: Path, data: np.ndarray, lengths: np.ndarray) -> dict[str, tuple[int, str]]:
    """Writes consecutive items of `lengths` elements each, taken from `data`, as an indexed file."""
    writer = IndexedWriter(prefix, data.dtype)
    writer.add(data, lengths)
    return writer.close()


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file in a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def finished_shards(folder: Path) -> int:
    """Number of shards of a running build that have their records."""
    return len(list((folder / "records").glob("shard-*.json")))


def run_script(*arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Runs `python ARGUMENTS` in the repository's root, as a user would."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, **settings)


def command_of(options: BuildOptions) -> list[str]:
    """The command line equivalent to these options."""
    words = ["data_prep/build_shards.py", "--input", *map(str, options.input)]
    for name in ("output", "vocab", "sentences", "seq_length", "held_out", "dedup", "shard_mb", "workers"):
        words += [f"--{name}", str(getattr(options, name))]
    return words


def processes_below(parent: int) -> list[int]:
    """PIDs of all descendants of a process."""
    path = Path(f"/proc/{parent}/task/{parent}/children")
    children = [int(child) for child in path.read_text().split()] if path.is_file() else []
    return [process for child in children for process in (*processes_below(child), child)]


def start_build(options: BuildOptions) -> subprocess.Popen[str]:
    """Starts a build in a session of its own."""
    command = [sys.executable, *command_of(options)]
    return subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for(is_time: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Waits until it is time, which must be before the process ends."""
    while not is_time():
        assert process.poll() is None
        time.sleep(0.001)


def kill_build(options: BuildOptions, is_time: Callable[[], bool], launcher: Sequence[str] = (sys.executable,)) -> None:
    """Starts a build and kills all its processes as soon as it is time, which must be before its end."""
    command = [*launcher, *command_of(options)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(is_time, process)
    for victim in (*processes_below(process.pid), process.pid):
        os.kill(victim, signal.SIGKILL)
    process.wait()
    assert not (options.output / "manifest.json").exists()


def with_other_text(path: Path) -> None:
    """Replaces the text by another of the same size and keeps the modification time, as `cp -p` would."""
    status, text = path.stat(), path.read_bytes()
    path.write_bytes(text[:-200].replace(b"ka", b"lo", 1) + text[-200:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def read_shards(
    sources: Sequence[Source], text_per_shard: float, reading: Reading, budget: int = CHUNK, **settings: Any
) -> Iterator[tuple[Shard, list[Chunk]]]:
    """All shards of the input, in order, with their chunks, read in this process."""
    for task in plan_shards(sources, text_per_shard):
        with Reader(reading, budget=budget, **settings) as reader:
            for shard in task:
                yield shard, list(reader.shard(shard))


def documents_of(chunks: Iterable[Chunk], reading: Reading = PARAGRAPHS) -> list[Document]:
    return [document for chunk in chunks for document in chunk.documents(reading)]


def limit_file_size(size: int = 1024) -> None:
    """Limits the files of this process, to simulate a full disk without affecting others."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


READ = """
import re
import sys
from pathlib import Path
from electra_sampler.foundation.config import ConfigError
from data_prep.formats import Reading
from data_prep.planning import Range
from data_prep.reading import Reader
from data_prep.sources import find_sources

try:
    with Reader(Reading()) as reader:
        for chunk in reader.chunks(Range(find_sources([Path(sys.argv[1])])[0])):
            for document in chunk.documents(Reading()):
                document.digest
    print("read")
except ConfigError as error:
    print("refused")
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def peak_of_reading(path: Path) -> tuple[str, float]:
    """Reads a file's documents in a new process; returns how it ended and its peak memory in megabytes."""
    done = subprocess.run(
        [sys.executable, "-c", READ, path], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    end, peak = done.stdout.split()
    return end, int(peak) / 1024


def write_byte_level_bpe(folder: Path, *added: str, **flags: bool) -> Path:
    """A BPE as ModernBERT's: without a space before a text's first word, with added tokens."""
    made = Tokenizer(models.BPE())
    made.normalizer, made.decoder = normalizers.NFC(), decoders.ByteLevel()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=[*SPECIAL_TOKENS], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the end of the day then and there"] * 9, trainer)
    made.add_tokens([AddedToken(token, **flags) for token in added])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    tokens = [str(made.id_to_token(number)) for number in range(made.get_vocab_size())]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    names = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | names))
    return folder


def many_documents(count: int = 200, size: int = 300) -> list[str]:
    return [f"Document {number}. " + "word " * (size // 5) + f"\nEnd of {number}." for number in range(count)]


def words(count: int, size: int) -> list[str]:
    """Documents of about `size` bytes that hardly compress."""
    draw = random.Random(0)
    return [" ".join(f"{draw.randrange(1 << 20):x}" for _ in range(1 + size // 6)) for _ in range(count)]
