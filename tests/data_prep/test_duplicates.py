"""Claims about finding exact and near duplicates, and about pairs on disk."""

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from data_prep import duplicates
from data_prep.duplicates import Pairs, copies_of, distinct, find_duplicates, hash_shard, matched, relinked
from data_prep.formats import Document
from data_prep.manifest import Dedup
from data_prep.planning import WorkerTask, plan_shards
from data_prep.reading import Reader
from data_prep.sources import find_sources
from tests.conftest import unread
from tests.data_prep.conftest import PARAGRAPHS, documents_of
from tests.data_prep.pools import pool_of

Copies = dict[int, str]


def find(
    folder: Path, tasks: Sequence[WorkerTask], workers: int = 1, dedup: Dedup = "exact"
) -> tuple[list[Copies], list[list[Document]]]:
    """The copies among the documents of each shard, and the documents."""
    shards = [shard for task in tasks for shard in task]
    with Reader(PARAGRAPHS) as reader:
        counts = [hash_shard(shard, reader, PARAGRAPHS, folder, dedup) for shard in shards]
        documents = [documents_of(reader.shard(shard)) for shard in shards]
    with pool_of(workers) as pool:
        found = find_duplicates(folder, counts, pool, dedup)
    starts = accumulate(counts, initial=0)
    return [copies_of(found, start, count) for start, count in zip(starts, counts, strict=False)], documents


def found_in(
    tmp_path: Path, texts: Iterable[Iterable[str]], per_shard: float = 1000, **options: Any
) -> list[tuple[str, str | None]]:
    (tmp_path / "in").mkdir(exist_ok=True)
    for number, documents in enumerate(texts):
        (tmp_path / "in" / f"{number}.txt").write_text("\n\n".join(documents))
    copies, found = find(tmp_path, plan_shards(find_sources([tmp_path / "in"]), per_shard), **options)
    return [
        (document.content.decode(), of_shard.get(n))
        for of_shard, in_shard in zip(copies, found, strict=True)
        for n, document in enumerate(in_shard)
    ]


@pytest.mark.parametrize("at_once", [7, 50, 200, 1 << 23])
def test_all_but_the_first_of_equal_documents_are_duplicates_at_any_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(duplicates, "_AT_ONCE", at_once)
    random = np.random.default_rng(0)
    texts = [[f"Document number {n}." for n in random.integers(0, 300, 100)] for _ in range(5)]
    seen = set()
    for text, reason in found_in(tmp_path, texts):
        assert reason == ("duplicate" if text in seen else None)
        seen.add(text)
    assert len(seen) > 200


PAGE = b"<page><ns>%d</ns><text>Same</text></page>"


@pytest.mark.parametrize(
    ("files", "copies"),
    [
        ({"a.txt": b"One.\n\n  One.  \n"}, {1: "duplicate"}),
        (
            {"a.txt": b"One.\nTwo.\n\nThree.", "b.txt": b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\nFour."},
            {2: "duplicate"},
        ),
        ({"a.xml": b"<mediawiki>" + PAGE % 1 + PAGE % 0 + PAGE % 0 + b"</mediawiki>"}, {2: "duplicate"}),
    ],
    ids=["white space around it", "line ends and a byte order mark", "but not of a skipped page"],
)
def test_a_document_may_differ_in_what_is_not_text_from_the_one_that_it_is_a_copy_of(
    files: dict[str, bytes], copies: Copies, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert find(tmp_path, plan_shards(find_sources([tmp_path]), 1e6))[0] == [copies]


@pytest.fixture
def tasks(tmp_path: Path) -> list[WorkerTask]:
    """A plan of three shards with two copies."""
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n\nTwo.")
    (tmp_path / "b.txt").write_text("One.\n\nSix.")
    return plan_shards(find_sources([tmp_path]), 12)


def test_text_is_not_hashed_again(tmp_path: Path, tasks: list[WorkerTask]) -> None:
    assert [sorted(copies) for copies in find(tmp_path, tasks)[0]] == [[], [0], [0]]
    before = {path: unread(path) for path in tmp_path.glob("keys-*.bin")}
    find(tmp_path, tasks)
    assert before == {path: unread(path) for path in tmp_path.glob("keys-*.bin")}


@pytest.mark.parametrize("left", [0, 20, 50])
def test_keys_that_were_cut_short_are_computed_again(tmp_path: Path, tasks: list[WorkerTask], left: int) -> None:
    copies, _ = find(tmp_path, tasks)
    for path in tmp_path.glob("keys-*.bin"):
        os.truncate(path, left)
    assert find(tmp_path, tasks)[0] == copies


@pytest.mark.parametrize("dedup", ["exact", "near"])
def test_no_documents_have_no_duplicates(tmp_path: Path, dedup: Dedup) -> None:
    with pool_of(1) as pool:
        assert copies_of(find_duplicates(tmp_path, [], pool, dedup), 0, 0) == {}


def digest_of(text: str) -> int:
    return int.from_bytes(Document(text.encode(), 0).digest, "little")


def planted(random: np.random.Generator, count: int, similarity: float) -> list[list[str]]:
    """Pairs of texts whose sets of 200 shingles have this Jaccard similarity, up to rounding."""
    texts = []
    for _ in range(count):
        words = random.integers(0, 10**4, 204)
        shared = round(200 * 2 * similarity / (1 + similarity)) + 4  # words, at the beginning
        other = np.concatenate((words[:shared], random.integers(0, 10**4, 204 - shared)))
        one, two = ({tuple(text[place : place + 5]) for place in range(200)} for text in (words, other))
        assert len(one & two) / len(one | two) == pytest.approx(similarity, abs=0.005)
        texts.append([" ".join(map(str, text)) for text in (words, other)])
    return texts


@pytest.mark.parametrize(("similarity", "least", "most"), [(0.3, 0, 0.01), (0.8, 0.95, 1)])
def test_near_copies_at_similarity_8_are_found_and_those_at_3_are_not(
    tmp_path: Path, similarity: float, least: float, most: float
) -> None:
    texts = planted(np.random.default_rng(0), 1000, similarity)
    reasons = dict(found_in(tmp_path, zip(*texts, strict=True), per_shard=1e6, dedup="near"))
    copies = [pair for pair in texts if any(reasons[text] for text in pair)]
    assert least <= len(copies) / len(texts) <= most
    assert all([reasons[text] for text in sorted(pair, key=digest_of)] == [None, "near_duplicate"] for pair in copies)


@pytest.mark.parametrize(("workers", "at_once"), [(1, 100), (1, 400), (1, 1 << 23), (2, 1 << 23), (3, 1 << 23)])
def test_of_a_chain_of_near_copies_the_smallest_digest_stays_however_the_work_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, at_once: int
) -> None:
    """Each text shares nine tenths with the next; the ends of the chain have nothing in common."""
    monkeypatch.setattr(duplicates, "_AT_ONCE", at_once)  # spawned workers do not see the change
    random = np.random.default_rng(0)
    words = random.integers(0, 10**4, 1000)
    chain = [" ".join(map(str, words[start : start + 300])) for start in range(0, 600, 20)]
    texts = [*chain, *chain[5:20], "Something else.", "One.", "...", "One", "...", "Else"]
    seen = set()
    order = [texts[place] for place in random.permutation(len(texts))]
    for text, reason in found_in(tmp_path, np.array_split(order, 5), 3000, workers=workers, dedup="near"):
        if text in seen:
            assert reason == "duplicate"
        else:
            group = next((group for group in (chain, ["One.", "One"]) if text in group), [text])
            assert reason == (None if text == min(group, key=digest_of) else "near_duplicate")
        seen.add(text)


def test_the_order_of_the_corpus_does_not_change_which_text_of_a_group_stays(tmp_path: Path) -> None:
    texts = planted(np.random.default_rng(1), 50, 0.9)
    kept = []
    for number, order in enumerate((texts, [pair[::-1] for pair in texts[::-1]])):
        (folder := tmp_path / str(number)).mkdir()
        marks = found_in(folder, zip(*order, strict=True), per_shard=1e5, dedup="near")
        kept.append({text for text, reason in marks if reason is None})
    assert kept[0] == kept[1]
    assert len(kept[0]) == 50


@pytest.mark.parametrize("ranges", [1, 2, 7, 50])
def test_consecutive_ranges_of_all_files_are_their_pairs_in_the_order_of_the_files(tmp_path: Path, ranges: int) -> None:
    random = np.random.default_rng(ranges)
    bounds = np.unique(random.integers(1, 1 << 63, ranges - 1, dtype=np.uint64))
    pairs = Pairs(tmp_path, "some", 3, np.append(np.uint64(0), bounds))
    written = [random.integers(0, 1 << 64, (size, 2), dtype=np.uint64) for size in (40, 0, 5)]
    written = [array[np.argsort(array[:, 0])] for array in written]
    for number, array in enumerate(written):
        pairs.write(number, array)
    every = np.concatenate(written)
    part = np.searchsorted(pairs.bounds, every[:, 0], side="right") - 1
    for first, last in combinations(range(len(pairs.bounds) + 1), 2):
        np.testing.assert_array_equal(pairs.read(range(first, last)), every[(first <= part) & (part < last)])


def test_each_later_document_is_matched_with_the_first_that_has_its_key() -> None:
    firsts, later = matched(np.array([[9, 0], [5, 1], [9, 2], [5, 3], [2, 4], [9, 5]], np.uint64))
    assert (firsts.tolist(), later.tolist()) == ([[2, 4], [5, 1], [9, 0]], [[2, 0], [3, 1], [5, 0]])


def random_links(random: np.random.Generator, size: int) -> np.ndarray:
    """Links between randomly named numbers: one or several of a sparse graph, hubs, a chain and a grid."""
    every = np.arange(size)
    kinds = [
        random.integers(0, size, (size // 2, 2)),
        np.stack((every, random.integers(0, 5, size)), axis=1),
        np.stack((every[:-1], every[1:]), axis=1),
        np.stack((every[:-30], every[30:]), axis=1),
    ]
    chosen = random.choice(len(kinds), random.integers(1, 4), replace=False)
    ends = random.permutation(size)[np.concatenate([kinds[kind] for kind in chosen])]
    return distinct(np.sort(ends[ends[:, 0] != ends[:, 1]], axis=1)[:, ::-1].astype(np.uint64))


@pytest.mark.parametrize("seed", range(20))
def test_relinking_leaves_one_link_to_all_but_the_smallest_number_of_each_group(seed: int) -> None:
    random = np.random.default_rng(seed)
    links = random_links(random, size := 10 ** int(random.integers(2, 5)))
    _, expected = connected_components(coo_array((np.ones(len(links)), links.T.astype(int)), (size, size)))
    rounds, is_done = 0, False
    while not is_done:
        links, is_done = relinked(links)
        rounds += 1
    _, groups = connected_components(coo_array((np.ones(len(links)), links.T.astype(int)), (size, size)))
    assert (np.unique(expected * size + groups, axis=0).size) == expected.max() + 1 == groups.max() + 1
    _, smallest = np.unique(expected, return_index=True)
    assert links[:, 0].tolist() == np.setdiff1d(np.arange(size), smallest).tolist()
    assert rounds <= 2 * np.log2(size)
