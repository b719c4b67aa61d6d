"""Real and random text, for tests that compare our ids and sentence ends with the libraries'."""

import lzma
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

_PRINTABLE = range(0x20, 0x7F)
_PLANES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]  # without surrogates


def corpus_files(shared_data: Path) -> list[Path]:
    """Files of Wikipedia, then of two collections of novels: about 400 MB uncompressed."""
    return [
        shared_data / "wiki" / "wikitext2-test.txt",
        *sorted(shared_data.glob("wiki/enwiki-A*.xz")),
        *sorted(shared_data.glob("books/*/*.txt.xz")),
    ]


def some_files(shared_data: Path) -> list[Path]:
    """A few of these files, of every kind."""
    files = corpus_files(shared_data)
    return [*files[:2], *files[7::40]]


def lines_of(path: Path, limit: int | None = None) -> list[str]:
    """Lines of a file as split by `str.splitlines`, from at most its first `limit` lines on disk."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        return b"".join(islice(file, limit)).decode(errors="replace").splitlines()


def fuzz_documents(characters: int, seed: int) -> Iterator[str]:
    """Random documents of 1 to 400 characters, each from a few kinds of characters."""
    random = np.random.default_rng(seed)
    kinds = [
        list(_PRINTABLE),
        list(b"etaoinshrdlu   .,'-"),
        list(b"Mr.U.S.e.g. a1)?!\"' .. [MASK] ##ing"),
        _PLANES,  # every plane, including unassigned characters
        list(range(0x80, 0x3000)),
        list(range(0x300, 0x370)),  # combining marks
        [*range(0x4E00, 0xA000), *range(0x20000, 0x2A000), *range(0xAC00, 0xD7A4)],  # CJK, Hangul
        [*range(0x1F300, 0x1FB00), 0x200D, 0xFE0F, *range(0x1F1E6, 0x1F200)],  # emoji and their joiners
        [*range(0x20), *range(0x7F, 0xA1), 0xAD, *range(0x2000, 0x2070), 0x3000, 0xFEFF],  # control, format, space
        [ord(letter) for letter in "İΣςßẞǅﬁſıÅÅ‘’“”«»½²٣"],  # case, ligatures, quotes, digits of other scripts
    ]
    alphabets = [np.array(kind, np.uint32) for kind in kinds]
    while characters > 0:
        length = int(random.integers(1, 400))
        chosen = random.choice(len(alphabets), 3)
        drawn = np.stack([random.choice(alphabets[kind], length) for kind in chosen])
        picked = drawn[random.integers(0, 3, length), np.arange(length)]
        yield picked.astype("<u4").tobytes().decode("utf-32-le")
        characters -= length
