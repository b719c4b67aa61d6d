"""Claims about finding exact duplicates."""

import numpy as np
import pytest

from data_prep import duplicates
from data_prep.duplicates import Duplicates, hash_chunk
from data_prep.formats import Reading
from data_prep.sources import find_sources
from data_prep.workers import start_pool

from .conftest import read_chunks


def find(folder, chunks, workers=1):
    counts = {chunk.number: hash_chunk(chunk, Reading(), folder) for chunk in chunks}
    with start_pool(workers) as pool:
        return Duplicates(folder, counts, pool)


def found_in(tmp_path, texts, budget=1000, workers=1):
    (tmp_path / "in").mkdir(exist_ok=True)
    for number, documents in enumerate(texts):
        (tmp_path / "in" / f"{number}.txt").write_text("\n\n".join(documents))
    chunks = list(read_chunks(find_sources([tmp_path / "in"]), budget, Reading()))
    found = find(tmp_path, chunks, workers)
    marks = []
    for chunk in chunks:
        documents = [document for piece in chunk.pieces for document in piece.documents(Reading())]
        marks += [(document.content.decode(), n in found.of(chunk.number)) for n, document in enumerate(documents)]
    return marks


@pytest.mark.parametrize("at_once", [7, 50, 200, 1 << 23])
def test_all_but_the_first_of_equal_documents_are_duplicates_at_any_distance(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(duplicates, "_AT_ONCE", at_once)
    random = np.random.default_rng(0)
    texts = [[f"Document number {n}." for n in random.integers(0, 300, 100)] for _ in range(5)]
    seen = set()
    for text, is_copy in found_in(tmp_path, texts):
        assert is_copy == (text in seen)
        seen.add(text)
    assert len(seen) > 200


def test_white_space_around_a_document_makes_no_difference(tmp_path):
    assert found_in(tmp_path, [["One.", "  One.  \n"]]) == [("One.", False), ("One.", True)]


def test_a_copy_with_other_line_ends_or_a_byte_order_mark_is_a_duplicate(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"One.\nTwo.\n\nThree.")
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\nThree. Four.")
    [chunk] = read_chunks(find_sources([tmp_path]), 10**6, Reading())
    assert find(tmp_path, [chunk]).of(0) == {2}


def test_a_skipped_document_does_not_count_as_an_original(tmp_path):
    page = b"<page><ns>%d</ns><text>Same</text></page>"
    (tmp_path / "a.xml").write_bytes(b"<mediawiki>" + page % 1 + page % 0 + page % 0 + b"</mediawiki>")
    [chunk] = read_chunks(find_sources([tmp_path]), 10**6, Reading())
    assert find(tmp_path, [chunk]).of(0) == {2}


def test_two_workers_find_the_same_duplicates(tmp_path):
    random = np.random.default_rng(1)
    texts = [[f"Document number {n}." for n in random.integers(0, 300, 100)] for _ in range(5)]
    seen = set()
    for text, is_copy in found_in(tmp_path, texts, workers=2):
        assert is_copy == (text in seen)
        seen.add(text)


def test_only_changed_text_is_hashed_again(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n\nTwo.")
    (tmp_path / "b.txt").write_text("One.\n\nSix.")
    chunks = list(read_chunks(find_sources([tmp_path]), 12, Reading()))
    assert [sorted(find(tmp_path, chunks).of(n)) for n in (0, 1)] == [[2], [0]]
    times = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("hashes-*.bin"))]
    (tmp_path / "b.txt").write_text("Ten.\n\nOne.")
    assert [sorted(find(tmp_path, chunks).of(n)) for n in (0, 1)] == [[2], [1]]
    again = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("hashes-*.bin"))]
    assert (again[0] == times[0], again[1] == times[1]) == (True, False)


def test_no_documents_have_no_duplicates(tmp_path):
    with start_pool(1) as pool:
        assert Duplicates(tmp_path, {}, pool)._starts.tolist() == [0]
