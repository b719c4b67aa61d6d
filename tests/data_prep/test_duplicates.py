"""Claims about finding exact duplicates."""

import numpy as np
import pytest

from data_prep import duplicates
from data_prep.chunks import read_chunks
from data_prep.duplicates import Duplicates, hash_chunk
from data_prep.formats import Reading
from data_prep.sources import find_sources


def found_in(tmp_path, texts, budget=1000):
    (tmp_path / "in").mkdir(exist_ok=True)
    for number, documents in enumerate(texts):
        (tmp_path / "in" / f"{number}.txt").write_text("\n\n".join(documents))
    chunks = list(read_chunks(find_sources([tmp_path / "in"]), budget, Reading()))
    for chunk in chunks:
        hash_chunk(chunk, Reading(), tmp_path)
    found = Duplicates(tmp_path, len(chunks))
    marks = []
    for chunk in chunks:
        documents = [document for piece in chunk.pieces for document in piece.documents(Reading())]
        marks += [(document.content.decode(), n in found.of(chunk.number)) for n, document in enumerate(documents)]
    return marks


@pytest.mark.parametrize("sorted_at_once", [50, 1 << 23])
def test_all_but_the_first_of_equal_documents_are_duplicates_at_any_distance(tmp_path, monkeypatch, sorted_at_once):
    monkeypatch.setattr(duplicates, "_SORTED_AT_ONCE", sorted_at_once)
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
    hash_chunk(chunk, Reading(), tmp_path)
    assert Duplicates(tmp_path, 1).of(0) == {2}


def test_a_skipped_document_does_not_count_as_an_original(tmp_path):
    page = b"<page><ns>%d</ns><text>Same</text></page>"
    (tmp_path / "a.xml").write_bytes(b"<mediawiki>" + page % 1 + page % 0 + page % 0 + b"</mediawiki>")
    [chunk] = read_chunks(find_sources([tmp_path]), 10**6, Reading())
    hash_chunk(chunk, Reading(), tmp_path)
    assert Duplicates(tmp_path, 1).of(0) == {2}


def test_no_documents_have_no_duplicates(tmp_path):
    assert Duplicates(tmp_path, 0)._numbers.size == 0
