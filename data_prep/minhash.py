"""Keys by which near copies of a document find each other: MinHash signatures, cut into bands.

A document is compared by its set of shingles: 5 consecutive words, in lower case and without punctuation. The smallest
of a set's hashes is equal in two documents with probability J, the Jaccard similarity of their sets. Of 112 such
minima, 16 bands of 7 become keys. So two documents have a common key with probability 1 - (1 - J^7)^16:

    J             .3      .5      .6      .7      .8      .9
    probability   0.35%   12%     37%     75%     97.7%   99.997%

FineWeb cuts 112 into 14 bands of 8, which finds 92.4% at .8. The hashing is our own because keys must never change: a
resumed build compares them with keys on disk. rensa 0.5 and datasketch 2.0 changed their signatures. Nor would a
library be faster, as finding and hashing the words takes most of the time.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np

from data_prep.formats import Document

BANDS = 16
_ROWS = 7
_SHINGLE = 5  # words
_AT_ONCE = 1 << 16  # shingles; fits into the processor's cache
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # written without spaces: each character counts as a word
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
_ODD = np.frombuffer(hashlib.shake_128(b"MinHash").digest(8 * (_SHINGLE + 2 * BANDS * _ROWS)), "<u8") | np.uint64(1)
_PLACES, _HASHES, _WEIGHTS = np.split(_ODD, [_SHINGLE, _SHINGLE + BANDS * _ROWS])
_FACTORS, _TERMS = _HASHES.astype(np.uint32), (_HASHES >> np.uint64(32)).astype(np.uint32)


def document_keys(documents: Iterable[Document]) -> Iterator[np.ndarray]:
    """Yields the keys of documents in batches, one row per document; zeros for documents that are dropped anyway.

    A row holds the digest, then a key per band, in ascending order: a key's first 4 bits are its band.
    """
    digests, shingles, size = list[bytes](), list[np.ndarray](), 0
    for document in documents:
        used = document.content and document.reason is None
        digests.append(document.digest if used else bytes(8))
        shingles.append(_shingles(document) if used else np.empty(0, np.uint64))
        size += len(shingles[-1])
        if size >= _AT_ONCE:
            yield _keys(digests, shingles)
            digests, shingles, size = [], [], 0
    if digests:
        yield _keys(digests, shingles)


def _shingles(document: Document) -> np.ndarray:
    """Hashes of the document's shingles; one of all its words if they are few, and of its bytes if there are none."""
    words = _WORD.findall(document.content.decode("utf-8", "replace").lower())
    if not words:
        return np.frombuffer(document.digest, "<u8")
    hashes = np.fromiter(map(_hash, words), np.uint64, len(words))
    length = min(_SHINGLE, len(words))
    count = len(words) - length + 1
    return _mixed(sum(hashes[place : place + count] * _PLACES[place] for place in range(length)))


@lru_cache(1 << 18)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def _keys(digests: list[bytes], shingles: list[np.ndarray]) -> np.ndarray:
    keys = np.zeros((len(digests), 1 + BANDS), np.uint64)
    keys[:, 0] = np.frombuffer(b"".join(digests), "<u8")
    lengths = np.array([len(hashes) for hashes in shingles])
    used = np.flatnonzero(lengths)
    if not len(used):
        return keys
    hashes = (np.concatenate(shingles) >> np.uint64(32)).astype(np.uint32)
    starts = np.cumsum(lengths[used]) - lengths[used]
    minima = [
        np.minimum.reduceat(hashes * factor + term, starts) for factor, term in zip(_FACTORS, _TERMS, strict=True)
    ]
    rows = np.stack(minima, axis=1).reshape(len(used), BANDS, _ROWS)
    hashed = _mixed((rows * _WEIGHTS.reshape(BANDS, _ROWS)).sum(axis=2))
    keys[used, 1:] = (np.arange(BANDS, dtype=np.uint64) << np.uint64(60)) | (hashed >> np.uint64(4))
    return keys


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Numbers whose bits depend on all bits of the given ones (the finalizer of SplitMix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
