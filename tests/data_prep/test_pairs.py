"""Claims about pairs on disk."""

import numpy as np
import pytest

from data_prep.pairs import Pairs, matched


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
        np.testing.assert_array_equal(pairs.read(part), expected)


def test_each_later_document_is_matched_with_the_first_that_has_its_key():
    pairs = np.array([[9, 0], [5, 1], [9, 2], [5, 3], [2, 4], [9, 5]], np.uint64)
    firsts, later = matched(pairs)
    assert firsts.tolist() == [[2, 4], [5, 1], [9, 0]]
    assert later.tolist() == [[2, 0], [3, 1], [5, 0]]


def test_no_pairs_match_nothing():
    firsts, later = matched(np.empty((0, 2), np.uint64))
    assert firsts.shape == later.shape == (0, 2)
