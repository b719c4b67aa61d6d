"""Makes a large corpus from a small one: altered copies of real documents, no two of them equal.

In each copy of a document one word in twenty is swapped with another, and the last line names the copy. A copy depends
only on the seed, its number and the file, so files can be written in any order by any number of processes. Existing
files are kept.
"""

import json
import lzma
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from foundation.files import TEMPORARY_SUFFIX, make_folder, with_suffix

EXCHANGED = 20
"""One word in this many is swapped with another."""
WIKI_DOCUMENT = re.compile(r"(<doc [^>]*>\n)(.*?)(</doc>\n?)", re.DOTALL)


class Copy(NamedTuple):
    """An altered copy of a source, which is a file of WikiExtractor's output or a folder of books."""

    source: Path
    number: int
    target: Path
    seed: int


def enlarge(wiki: Sequence[Path], books: Path, folder: Path, size: int, seed: int, processes: int) -> int:
    """Fills `folder` with at least `size` bytes of text; returns the number of bytes.

    `wiki` are files of WikiExtractor's output, `books` is a folder with one book per file; all are compressed with xz.
    Each copy of all books is written as one file of JSON lines.
    """
    written, number = 0, 0
    with ProcessPoolExecutor(processes) as pool:
        while written < size:
            copies = [Copy(path, number, folder / f"wiki/{number:03d}/{path.stem}.txt", seed) for path in wiki]
            copies.append(Copy(books, number, folder / f"books/{number:03d}.jsonl", seed))
            written += sum(pool.map(write_copy, copies))
            number += 1
    return written


def write_copy(copy: Copy) -> int:
    """Writes one copy atomically unless it exists; returns its size in bytes."""
    if copy.target.exists():
        return copy.target.stat().st_size
    make_folder(copy.target.parent)
    temporary = with_suffix(copy.target, TEMPORARY_SUFFIX)
    draws = random.Random(f"{copy.seed}/{copy.number}/{copy.source.name}")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(_books(copy, draws) if copy.source.is_dir() else _articles(copy, draws))
    temporary.replace(copy.target)
    return copy.target.stat().st_size


def _articles(copy: Copy, draws: random.Random) -> Iterator[str]:
    text = lzma.decompress(copy.source.read_bytes()).decode()
    for number, found in enumerate(WIKI_DOCUMENT.finditer(text)):
        start, body, end = found.groups()
        yield f"{start}{altered(body, draws)}\n{_mark(copy, number)}\n{end}"


def _books(copy: Copy, draws: random.Random) -> Iterator[str]:
    for number, path in enumerate(sorted(copy.source.rglob("*.txt.xz"))):
        text = lzma.decompress(path.read_bytes()).decode("utf-8-sig")
        yield json.dumps({"text": f"{altered(text, draws)}\n{_mark(copy, number)}"}, ensure_ascii=False) + "\n"


def _mark(copy: Copy, number: int) -> str:
    return f"This is copy {copy.number} of document {number} of {copy.source.name}."


def altered(text: str, draws: random.Random) -> str:
    """Returns the text with random pairs of words swapped."""
    words = text.split(" ")
    for _ in range(len(words) // (2 * EXCHANGED)):
        left, right = int(draws.random() * len(words)), int(draws.random() * len(words))
        words[left], words[right] = words[right], words[left]
    return " ".join(words)
