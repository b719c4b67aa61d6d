"""Keys that near-duplicate documents have in common: MinHash signatures, cut into bands.

A document is compared by its set of shingles: 5 consecutive words (`words.py`), in lower case. The smallest
of a set's hashes is equal in two documents with probability J, the Jaccard similarity of their sets. 112 such minima
form 16 bands of 7; each band becomes a key. So two documents have a common key with probability 1 - (1 - J^7)^16:

    J             .3      .5      .6      .7      .8      .9
    probability   0.35%   12%     37%     75%     97.7%   99.997%

FineWeb cuts 112 into 14 bands of 8, which finds 92.4% at .8. The hashing is our own because keys must never change: a
resumed build compares them with keys on disk, and equal text must give equal shards. rensa 0.5 and datasketch 2.0
changed their signatures. Nor would a library save much: finding and hashing the words takes most of the time.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np

from data_prep.curation.words import word_starts
from data_prep.formats import Document
from data_prep.reading import batches
from electra_sampler.foundation.ordering import scrambled

BANDS = 16
_ROWS = 7
_SHINGLE = 5  # words
_AT_ONCE = 1 << 18  # characters; their arrays fit into the processor's cache
_ODD = np.frombuffer(hashlib.shake_128(b"MinHash").digest(8 * (1 + _SHINGLE + 2 * BANDS * _ROWS)), "<u8") | np.uint64(1)
_BASE, _PLACES, _HASHES, _WEIGHTS = np.split(_ODD, np.cumsum([1, _SHINGLE, BANDS * _ROWS]))
_FACTORS, _TERMS = _HASHES.astype(np.uint32), (_HASHES >> np.uint64(32)).astype(np.uint32)


def document_keys(documents: Iterable[Document], *, near: bool) -> Iterator[np.ndarray]:
    """Yields the keys of documents in batches, one row per document; zeros for documents that are dropped anyway.

    A row holds the digest and, if `near`, a key per band. These ascend, because a key's first 4 bits are the number of
    its band.
    """
    for batch in batches(documents, _AT_ONCE, lambda document: len(document.content)):
        used = np.array([bool(document.content) and document.reason is None for document in batch])
        digests = np.frombuffer(b"".join(document.digest for document in batch), "<u8")
        contents = (document.content if use else b"" for document, use in zip(batch, used, strict=True))
        keys = np.column_stack((digests, _bands([*contents], digests))) if near else digests[:, None]
        yield np.where(used[:, None], keys, np.uint64(0))


def _bands(contents: list[bytes], digests: np.ndarray) -> np.ndarray:
    """Returns the keys of the bands of each content; those of a content without words follow from its digest."""
    words, starts = _words(contents)
    # zeros after each document, so that its last shingles, or its only one if it is short, do not reach into the next
    numbers = np.arange(len(contents))
    lengths = np.diff(np.append(starts, len(words)))
    padded = np.zeros(len(words) + _SHINGLE * (len(contents) + 1), np.uint64)
    padded[np.arange(len(words)) + _SHINGLE * np.repeat(numbers, lengths)] = words
    count = len(padded) - _SHINGLE + 1
    shingles = scrambled(sum(padded[place : place + count] * _PLACES[place] for place in range(_SHINGLE)))
    firsts = starts + _SHINGLE * numbers
    shingles[firsts[lengths == 0]] = digests[lengths == 0]
    # minima over each document's shingles, and over the zeros after it
    bounds = np.stack((firsts, firsts + np.maximum(lengths - _SHINGLE + 1, 1)), axis=1).ravel()
    hashes = (shingles >> np.uint64(32)).astype(np.uint32)
    minima = [
        np.minimum.reduceat(hashes * factor + term, bounds)[::2] for factor, term in zip(_FACTORS, _TERMS, strict=True)
    ]
    rows = np.stack(minima, axis=1).reshape(-1, BANDS, _ROWS)
    bands = scrambled((rows * _WEIGHTS.reshape(BANDS, _ROWS)).sum(axis=2)) >> np.uint64(4)
    return bands | (np.arange(BANDS, dtype=np.uint64) << np.uint64(60))


def _words(contents: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the hashes of the words of all contents, and the index of each content's first word among them."""
    letters, powers, inverses = _tables()
    texts = [unicodedata.normalize("NFC", content.decode("utf-8", "replace")).lower() for content in contents]
    text, ends = "\n".join(texts), np.cumsum([len(text) + 1 for text in texts])
    hashes, places, start = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], 0
    while start < len(text):
        codes = np.frombuffer(text[start : start + _AT_ONCE].encode("utf-32-le", "surrogatepass"), "<u4")
        is_inside, is_first = word_starts(codes)
        values, firsts = np.where(is_inside, letters[codes], np.uint64(0)), np.flatnonzero(is_first)
        end = len(codes)
        if start + end < len(text) and len(firsts) and firsts[-1]:  # the last word may continue
            end, firsts = int(firsts[-1]), firsts[:-1]
        sums = np.append(np.uint64(0), np.cumsum(values * powers[: len(codes)], dtype=np.uint64))
        hashes.append(np.diff(sums[np.append(firsts, end)]) * inverses[firsts])
        places.append(start + firsts)
        start += end
    return np.concatenate(hashes), np.searchsorted(np.concatenate(places), np.append(0, ends[:-1]))


@cache
def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a random number per code point; by position: powers, inverses."""
    letters = scrambled(np.arange(1, 0x110001, dtype=np.uint64))
    inverse = np.uint64(pow(int(_BASE[0]), -1, 1 << 64))
    powers, inverses = (np.multiply.accumulate(np.full(_AT_ONCE, base)) for base in (_BASE[0], inverse))
    return letters, powers, inverses
