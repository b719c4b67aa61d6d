"""A large corpus from a small one: copies of real documents, each altered, so that no two documents are equal.

In copy `n` of a document one word in twenty has changed places with another word of it, and its last line says which
copy it is. Every copy of a file depends on the seed, the copy's number and the file alone: files are written in any
order, by any number of processes, and a file that is there already is left.
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
"""One word in so many is one of a pair that changes places."""
WIKI_DOCUMENT = re.compile(r"(<doc [^>]*>\n)(.*?)(</doc>\n?)", re.DOTALL)


class Copy(NamedTuple):
    """One altered copy of a source: a file of WikiExtractor's output, or a folder of books."""

    source: Path
    number: int
    target: Path
    seed: int


def enlarge(wiki: Sequence[Path], books: Path, folder: Path, size: int, seed: int, processes: int) -> int:
    """Fills `folder` with at least `size` bytes of text; returns their number.

    `wiki` are files of WikiExtractor's output and `books` a folder with a book in each file, all packed by xz. A copy
    of all books is one file of JSON lines.
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
    """Writes one copy, whole or not at all, where it is not yet; returns its bytes."""
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
    """The text with some pairs of its words exchanged."""
    words = text.split(" ")
    for _ in range(len(words) // (2 * EXCHANGED)):
        left, right = int(draws.random() * len(words)), int(draws.random() * len(words))
        words[left], words[right] = words[right], words[left]
    return " ".join(words)
