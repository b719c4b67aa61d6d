"""Finds duplicate and near-duplicate documents in the whole corpus, on the workers, by hashes of all documents.

1. `hash_shard` writes the keys of a shard's documents, 8 bytes each: a text's digest and, to find near duplicates, the
   bands of `minhash`. Texts with a common band are linked, and texts that links connect form a group.
2. `_sort_run` sorts the keys of a run: consecutive documents whose keys fit into memory.
3. `_link` links texts of different runs, for one range of bands.
4. `_relink` reduces the links of some ranges of digests to a tree per group, in several rounds.
5. `_match` finds duplicates in different runs, for some ranges of digests.
6. `copies_of` returns the duplicates among the documents of a shard.

Of equal texts, the first document stays. Of a group, the text with the smallest digest stays, wherever it is. (Digests
are read as little-endian numbers, so their last bytes decide. Their first bytes choose the held-out documents.) Every
text is linked only to smaller digests, so that even the links of a large group are spread over all ranges.

Every key is written and read twice, and a worker holds `_AT_ONCE` keys. Two different documents with the same hash
would count as duplicates. Among 100 million documents, the chance of any such pair is 1 in 3,700 (n^2 / 2^65).
"""

from bisect import bisect, bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.formats import Reading
from data_prep.manifest import Dedup
from data_prep.minhash import BANDS, document_keys
from data_prep.planning import Shard
from data_prep.reading import Reader, hashed, text_digest
from data_prep.workers import Pool
from electra_sampler.foundation.files import NewFile

REASONS = ("duplicate", "near_duplicate")
_KEYS = {"exact": 1, "near": 1 + BANDS}  # per document
_AT_ONCE = 1 << 23  # keys; sorting takes about 90 bytes each
_DIGEST = 32  # hexadecimal digits at the end of a file of keys: the digest of the shard's text


def hash_shard(shard: Shard, reader: Reader, reading: Reading, folder: Path, dedup: Dedup) -> int:
    """Writes the keys of a shard's documents, in order, unless already written; returns the number of documents."""
    path = keys_path(folder, shard.number)
    if not (path.is_file() and path.read_bytes()[-_DIGEST:].isalnum()):  # else cut short: keys are no digits
        file, digest = NewFile(path), text_digest()
        chunks = hashed(reader.shard(shard), digest)
        documents = (document for chunk in chunks for document in chunk.documents(reading))
        for keys in document_keys(documents, near=dedup == "near"):
            file.write(keys.tobytes())
        file.write(digest.hexdigest().encode())
        file.close()
    return (path.stat().st_size - _DIGEST) // (8 * _KEYS[dedup])


def keys_path(folder: Path, shard: int) -> Path:
    """Returns the path of the file that holds the keys of a shard's documents."""
    return folder / f"keys-{shard:05d}.bin"


class Pairs(NamedTuple):
    """Pairs of numbers in `files` files, grouped by ranges of the first number.

    A file holds the offset of every range, then its pairs, sorted by the first number.
    """

    folder: Path
    name: str
    files: int
    bounds: np.ndarray
    """The lower bound of each range."""

    def write(self, number: int, pairs: np.ndarray) -> None:
        """Writes `pairs` [pairs, 2], sorted by the first column, as the file of this number."""
        offsets = np.append(np.searchsorted(pairs[:, 0], self.bounds), len(pairs)).astype(np.uint64)
        with self.path(number).open("wb") as file:  # not flushed: every run of a build writes it again
            file.write(offsets.data)  # unlike `tofile`, says why it fails
            file.write(pairs.tobytes())

    def read(self, ranges: range) -> np.ndarray:
        """Returns the pairs of consecutive ranges, file after file."""
        found = [np.empty(0, np.uint64)]
        for path in map(self.path, range(self.files)):
            offsets = np.fromfile(path, np.uint64, len(ranges) + 1, offset=8 * ranges.start)
            first, last = int(offsets[0]), int(offsets[-1])
            if first < last:
                place = 8 * (len(self.bounds) + 1) + 16 * first
                found.append(np.fromfile(path, np.uint64, 2 * (last - first), offset=place))
        return np.concatenate(found).reshape(-1, 2)

    def path(self, number: int) -> Path:
        """Returns the path of file `number`."""
        return self.folder / f"{self.name}-{number:05d}.bin"


class _Run(NamedTuple):
    """Consecutive documents with at most `_AT_ONCE` keys."""

    number: int
    parts: tuple[tuple[int, int, int], ...]
    """Per shard: its number, the index of its first document that is in the run, and the number of such documents."""
    first: np.uint64
    """Index of the run's first document in the corpus."""
    keys: int
    """Number of keys per document."""


class _Found(NamedTuple):
    """The files of pairs that the steps write for later steps."""

    texts: Pairs
    """Digest of a text, and the first document in the run with this text; a file per run."""
    bands: Pairs
    """Band, and the smallest digest in the run of a text with this band; a file per run."""
    links: Pairs
    """Digest of a text, and the smaller one of another with a common band; a file per run and per range of bands."""
    copies: Pairs
    """Document to drop, and its reason as an index into `REASONS`; a file per run and per call of `_match`."""


def find_duplicates(folder: Path, counts: Sequence[int], pool: Pool, dedup: Dedup) -> Pairs:
    """Finds the documents to drop: all but the first with a text, and all texts of a group but one.

    `folder` holds the keys of all shards, written by `hash_shard`; `counts` are the shards' numbers of documents.
    Pass the result to `copies_of`.
    """
    starts = [0, *accumulate(counts)]
    documents, per_run = starts[-1], _AT_ONCE // _KEYS[dedup]
    runs = []
    for number, first in enumerate(range(0, documents, per_run)):
        last = min(first + per_run, documents)
        shards = range(bisect(starts, first) - 1, bisect_left(starts, last))
        pieces = (
            (n, max(first, starts[n]) - starts[n], min(last, starts[n + 1]) - max(first, starts[n])) for n in shards
        )
        runs.append(_Run(number, tuple(pieces), np.uint64(first), _KEYS[dedup]))
    parts = documents * _KEYS[dedup] // _AT_ONCE + 1
    bounds = np.array([(part << 64) // parts for part in range(parts)], np.uint64)
    wide = _ranges(parts, documents)
    found = _Found(
        Pairs(folder, "texts", len(runs), bounds),
        Pairs(folder, "bands", len(runs), bounds),
        Pairs(folder, "links", len(runs) + parts, bounds),
        Pairs(folder, "copies", len(runs) + len(wide), np.array([run.first for run in runs], np.uint64)),
    )
    links = sum(count for _, count in pool.run(_sort_run, runs, found))
    trees = None
    if dedup == "near":
        links += sum(count for _, count in pool.run(_link, range(parts), found))
        trees = _trees(found.links, _ranges(parts, links), pool)
    deque(pool.run(_match, wide, found, trees), 0)
    return found.copies


def copies_of(copies: Pairs, first: int, count: int) -> dict[int, str]:
    """Returns, for the `count` documents from `first` on, the reasons to drop duplicates, by index minus `first`."""
    found = copies.read(range(max(0, bisect(copies.bounds, first) - 1), bisect_left(copies.bounds, first + count)))
    found = found[(first <= found[:, 0]) & (found[:, 0] < first + count)]
    return {document - first: REASONS[reason] for document, reason in found.tolist()}


def _ranges(parts: int, pairs: int) -> list[tuple[int, range]]:
    """Joins the `parts` ranges, which hold `pairs` pairs, into numbered groups of about `_AT_ONCE` pairs each."""
    step = max(1, parts * _AT_ONCE // max(1, pairs))
    return list(enumerate(range(start, min(start + step, parts)) for start in range(0, parts, step)))


def _sort_run(run: _Run, found: _Found) -> int:
    """Writes the texts, bands and links of a run, and the duplicates within it; returns the number of links."""
    keys = np.concatenate(
        [
            np.fromfile(keys_path(found.texts.folder, shard), np.uint64, count * run.keys, offset=8 * run.keys * first)
            for shard, first, count in run.parts
        ]
    ).reshape(-1, run.keys)
    used = np.flatnonzero(keys[:, 0])
    texts, later = matched(np.stack((keys[used, 0], run.first + used.astype(np.uint64)), axis=1))
    found.texts.write(run.number, texts)
    found.copies.write(run.number, _with_reason(later[:, 0], 0))
    if run.keys == 1:
        return 0
    keys = keys[texts[:, 1] - run.first]  # in ascending order of their digests, so that the smallest is the first
    bands = [matched(np.stack((keys[:, band], keys[:, 0]), axis=1)) for band in range(1, run.keys)]
    found.bands.write(run.number, np.concatenate([firsts for firsts, _ in bands]))
    links = distinct(np.concatenate([links for _, links in bands]))
    found.links.write(run.number, links)
    return len(links)


def _link(part: int, found: _Found) -> int:
    """Links texts of different runs with a common band in range `part`; returns the number of links."""
    bands = found.bands.read(range(part, part + 1))
    links = matched(bands[np.argsort(bands[:, 1])])[1]
    links = distinct(links[links[:, 0] != links[:, 1]])
    found.links.write(found.bands.files + part, links)
    return len(links)


def _trees(links: Pairs, ranges: list[tuple[int, range]], pool: Pool) -> Pairs:
    """Reduces links to a tree per group: all of its texts but the one with the smallest digest have one link."""
    fewer, spare = (links._replace(name=f"trees-{number}", files=len(ranges)) for number in range(2))
    is_done = False
    while not is_done:
        is_done = min(unchanged for _, unchanged in pool.run(_relink, ranges, links, fewer))
        links, fewer, spare = fewer, spare, fewer
    return links


def _relink(numbered: tuple[int, range], links: Pairs, fewer: Pairs) -> bool:
    """Applies `relinked` to the links of digests in some ranges; returns True if they already formed trees."""
    number, ranges = numbered
    found, unchanged = relinked(distinct(links.read(ranges)))
    fewer.write(number, found)
    return unchanged


def _match(numbered: tuple[int, range], found: _Found, trees: Pairs | None) -> None:
    """Writes the duplicates in different runs, and all near duplicates, of texts with digests in some ranges.

    The runs are in corpus order, so the first document found with a digest is the first in the corpus.
    """
    number, ranges = numbered
    texts, later = matched(found.texts.read(ranges))
    near = texts[np.isin(texts[:, 0], trees.read(ranges)[:, 0]), 1] if trees else np.empty(0, np.uint64)
    copies = np.concatenate((_with_reason(later[:, 0], 0), _with_reason(near, 1)))
    found.copies.write(found.texts.files + number, distinct(copies))


def _with_reason(documents: np.ndarray, reason: int) -> np.ndarray:
    """Returns pairs of a document and `reason`, an index into `REASONS`."""
    return np.stack((documents, np.full_like(documents, reason)), axis=1)


def matched(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds equal keys in pairs (key, document), which are given in ascending order of documents.

    Returns the first pair of each key, sorted by key; and for each other pair, its document and the first document
    with the same key, sorted by the former.
    """
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    is_first = _starts(pairs[:, 0])
    firsts = pairs[is_first]
    later = np.stack((pairs[:, 1], firsts[np.cumsum(is_first) - 1, 1]), axis=1)[~is_first]
    return firsts, later[np.argsort(later[:, 0])]


def distinct(pairs: np.ndarray) -> np.ndarray:
    """Returns the distinct pairs, sorted by their first and then their second number."""
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    return pairs[_starts(pairs[:, 0]) | _starts(pairs[:, 1])]


def relinked(links: np.ndarray) -> tuple[np.ndarray, bool]:
    """Replaces the links from each number u to smaller ones, v1 < v2 < ..., by the links u-v1, v2-v1, v3-v1, ...

    Connected numbers stay connected. Repeating this step leaves every number with one link, except the smallest of each
    group of connected numbers, which has none (the small-star step of Kiveris et al. 2014, Connected Components in
    MapReduce and Beyond; with random numbers, it needs no large-star step).

    Args:
        links: all pairs (number, smaller number) of some numbers u, sorted and distinct.

    Returns:
        The new links, sorted and distinct; True if they are the same as before.
    """
    is_first = _starts(links[:, 0])
    kept = links[is_first]
    smallest = kept[np.cumsum(is_first) - 1, 1]
    others = np.stack((links[:, 1], smallest), axis=1)[~is_first]
    return distinct(np.concatenate((kept, others))), not len(others)


def _starts(numbers: np.ndarray) -> np.ndarray:
    """Marks the first of each run of equal numbers."""
    return np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]
