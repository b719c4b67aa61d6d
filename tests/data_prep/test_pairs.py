"""Claims about pairs on disk."""

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from data_prep.duplicates import Pairs, distinct, matched, relinked


@pytest.mark.parametrize("ranges", [1, 2, 7, 50])
def test_the_ranges_of_all_files_are_all_pairs_in_the_order_of_the_files(tmp_path, ranges):
    random = np.random.default_rng(ranges)
    bounds = np.unique(random.integers(1, 1 << 63, ranges - 1, dtype=np.uint64))
    pairs = Pairs(tmp_path, "some", 3, np.append(np.uint64(0), bounds))
    written = [random.integers(0, 1 << 64, (size, 2), dtype=np.uint64) for size in (40, 0, 5)]
    written = [array[np.argsort(array[:, 0])] for array in written]
    for number, array in enumerate(written):
        pairs.write(number, array)
    ends = np.append(pairs.bounds[1:], np.uint64((1 << 64) - 1))
    for part, (first, last) in enumerate(zip(pairs.bounds, ends, strict=True)):
        expected = np.concatenate([array[(array[:, 0] >= first) & (array[:, 0] < last)] for array in written])
        np.testing.assert_array_equal(pairs.read(range(part, part + 1)), expected)


def test_consecutive_ranges_are_read_together(tmp_path):
    pairs = Pairs(tmp_path, "some", 2, np.array([0, 10, 20, 30], np.uint64))
    pairs.write(0, np.array([[5, 0], [10, 1], [19, 2], [25, 3], [40, 4]], np.uint64))
    pairs.write(1, np.array([[15, 5], [29, 6]], np.uint64))
    assert pairs.read(range(1, 3))[:, 1].tolist() == [1, 2, 3, 5, 6]
    assert pairs.read(range(4))[:, 1].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_each_later_document_is_matched_with_the_first_that_has_its_key():
    pairs = np.array([[9, 0], [5, 1], [9, 2], [5, 3], [2, 4], [9, 5]], np.uint64)
    firsts, later = matched(pairs)
    assert firsts.tolist() == [[2, 4], [5, 1], [9, 0]]
    assert later.tolist() == [[2, 0], [3, 1], [5, 0]]


def test_no_pairs_match_nothing():
    firsts, later = matched(np.empty((0, 2), np.uint64))
    assert firsts.shape == later.shape == (0, 2)


def random_links(random, size):
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
def test_relinking_leaves_one_link_to_all_but_the_smallest_number_of_each_group(seed):
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


def test_no_links_need_no_relinking():
    links, is_done = relinked(distinct(np.empty((0, 2), np.uint64)))
    assert (links.shape, is_done) == ((0, 2), True)
