"""Claims about reading the documents of ranges, in chunks."""

import json
import lzma
import zlib
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.formats import Boundary, Reading
from data_prep.planning import Range, plan_shards
from data_prep.reading import Chunk, Reader, batches, sample_chunks, sample_documents
from data_prep.sources import find_sources
from electra_sampler.foundation.config import ConfigError
from tests.data_prep.conftest import documents_of, many_documents, peak_of_reading, read_shards, words
from tests.data_prep.packers import PACKERS


def read_all(
    path: Path, budget: int = 10_000, boundary: Boundary = "blank_line", per_shard: float = 1e9, **settings: Any
) -> tuple[list[Chunk], list[str]]:
    """The chunks and the documents of all shards."""
    reading = Reading(boundary)
    shards = read_shards(find_sources([path]), per_shard, reading, budget, **settings)
    chunks = [chunk for _, of_shard in shards for chunk in of_shard]
    return chunks, [document.content.decode() for document in documents_of(chunks, reading)]


ENDS = {
    "blank line": ("a.txt", "", "{}", "\n{}\n"),
    "doc": ("wiki_00", "", '<doc id="1">\n{}\n', "</doc>{}\n"),
    "page": ("a.xml", "<mediawiki>", "<page><ns>0</ns><text>{}</text>", "</page>{}\n"),
    "line": ("a.jsonl", "", '{{"text": "{}"}}', "{}\n"),
}
"""Kinds of files: a name, how it begins, a document, and its end with room for blanks."""


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize(
    ("budget", "per_shard"), [(1000, 1e9), (17_001, 1e9), (10**9, 1e9), (1000, 7000), (10**9, 900)]
)
def test_each_document_of_any_format_is_read_once_for_any_size_of_chunks_and_shards(
    tmp_path: Path, packing: str, kind: str, budget: int, per_shard: float
) -> None:
    name, beginning, document, end = ENDS[kind]
    inside = "\n\nmore" if kind in ("doc", "page") else ""  # a blank line, which ends a document only of plain text
    texts = [text + inside for text in words(200, 300)]
    content = beginning + "".join((document + end).format(text, "") for text in texts)
    (tmp_path / f"{name}{packing}").write_bytes(PACKERS[packing](content.encode()))
    chunks, found = read_all(tmp_path, budget, per_shard=per_shard)
    assert found == texts
    assert len(chunks) == 1 if min(budget, per_shard) > 10**6 else len(chunks) > 3


@pytest.mark.parametrize("blanks", [0, 100])
@pytest.mark.parametrize("kind", ENDS)
def test_the_end_of_a_document_may_have_any_length_and_lie_anywhere_across_blocks_and_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, blanks: int
) -> None:
    """The end of the third document lies at every place around the border of two shards, which read other blocks."""
    monkeypatch.setattr("data_prep.reading._BLOCK", 100)
    name, beginning, document, end = ENDS[kind]
    texts, border = [f"Text {number}." for number in range(40)], 837
    filled = len(beginning + (document + end).format("Text 0.", " " * blanks) * 2 + document.format("Text 2."))
    for place in range(border - blanks - 20, border + 20):
        texts[2] = "Text 2." + "x" * (place - filled)
        content = "".join((document + end).format(text, " " * blanks) for text in texts)
        (tmp_path / name).write_text(beginning + content)
        [source] = find_sources([tmp_path / name])
        found = []
        for part in (Range(source, 0, border), Range(source, border, 1500), Range(source, 1500)):
            with Reader(Reading()) as reader:
                found += documents_of(reader.chunks(part))
        assert [document.content.decode() for document in found] == texts


def test_a_chunk_holds_about_its_budget(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("\n\n".join(many_documents(100)))
    chunks, _ = read_all(tmp_path, 10_000)
    assert max(chunk.size for chunk in chunks) < 10_000 + 1_000
    assert sum(chunk.size for chunk in chunks) == sum(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("size", [30, 300, 12_000])
@pytest.mark.parametrize("per_shard", [400, 1001, 7000])
def test_each_document_of_a_file_is_in_one_shard(tmp_path: Path, packing: str, size: int, per_shard: float) -> None:
    """The longest documents run on through several ranges."""
    texts = words(60_000 // size, size)
    (tmp_path / f"a.txt{packing}").write_bytes(PACKERS[packing]("\n\n".join(texts).encode()))
    assert read_all(tmp_path, per_shard=per_shard)[1] == texts


@pytest.mark.parametrize("shift", range(12))
def test_documents_that_end_where_ranges_end_are_read_once(tmp_path: Path, shift: int) -> None:
    texts = [f"{number:07d}." for number in range(1000)]
    for blank in ("\n\n", "\n \n", "\n \n \n\n"):
        (tmp_path / "a.txt").write_text("x" * shift + blank + blank.join(texts))
        assert read_all(tmp_path, budget=70, per_shard=100)[1][-1000:] == texts


def test_both_sides_of_a_range_cut_a_document_without_an_end_in_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_prep.reading._BLOCK", 900)
    numbers = [f"{number}" for number in range(20_000)]
    (tmp_path / "a.txt").write_text(" ".join(numbers))
    chunks, found = read_all(tmp_path, 1000, "file", per_shard=1500, longest=4000)
    assert len(chunks) > 10
    assert " ".join(found).split() == numbers
    assert [chunk.cut for chunk in chunks] == [True] * (len(chunks) - 1) + [False]


@pytest.mark.parametrize(
    ("name", "content", "boundary", "documents"),
    [
        ("a.txt", b"One.\n\nTwo.\n", "file", ["One.\n\nTwo."]),
        ("a.txt", b"One.\r\nStill one.\r\n\r\nTwo.\r\n", "blank_line", ["One.\r\nStill one.", "Two."]),
        ("wiki_00", b'<doc id="1">\n</doc>\n<doc id="2">\nText\n</doc>\n', "blank_line", ["", "Text"]),
    ],
    ids=["a file may be one", "Windows' line ends separate them", "an empty one of WikiExtractor's is reported"],
)
def test_documents_are_those_of_their_format(
    tmp_path: Path, name: str, content: bytes, boundary: Boundary, documents: list[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert read_all(tmp_path, boundary=boundary)[1] == documents


@pytest.mark.parametrize("small", [0, 300, 521])
def test_a_sample_is_spread_over_the_whole_corpus_whatever_the_sizes_of_its_files(tmp_path: Path, small: int) -> None:
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("\n\n".join(many_documents(100)))
    for number in range(small):
        (tmp_path / f"small-{number}.txt").write_text("Ka lo.")
    sample = list(sample_documents(find_sources([tmp_path]), 20_000, Reading()))
    assert 20_000 < sum(map(len, sample)) < 30_000
    assert sum(text.startswith("Document 0.") for text in sample) == 10


def test_a_sample_has_its_size_also_if_text_is_in_hundreds_of_files_among_small_ones(tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / f"{number}.txt").write_text("Ka lo." if number < 1200 else "\n\n".join(["Ka lo mi ne."] * 200))
    size = sum(chunk.size for chunk in sample_chunks(find_sources([tmp_path]), 400_000, Reading()))
    assert size == pytest.approx(400_000, rel=0.02)


def test_a_sample_of_long_records_is_not_much_larger_than_requested(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number:02d}.jsonl").write_text(json.dumps({"text": f"{number} " + "word " * 2_000}) + "\n")
    sample = list(sample_documents(find_sources([tmp_path]), 20_000, Reading()))
    assert 20_000 < sum(map(len, sample)) < 60_000
    assert len({text.split()[0] for text in sample}) == len(sample)
    assert int(sample[-1].split()[0]) > 25


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize("budget", [10, 900])
@pytest.mark.parametrize("place", [0, 5, 9])
def test_a_record_much_too_large_is_refused_by_name_at_any_place_and_chunk_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str, budget: int, place: int
) -> None:
    monkeypatch.setattr("data_prep.reading.LONGEST_RECORD", 1000)
    monkeypatch.setattr("data_prep.reading._BLOCK", 100)
    lines = [json.dumps({"text": "Ka lo mi. " * 50})] * 9
    path = tmp_path / f"a.jsonl{packing}"
    path.write_bytes(PACKERS[packing]("\n".join(lines).encode()))
    assert len(read_all(tmp_path, budget)[1]) == 9
    lines.insert(place, json.dumps({"text": "Ka lo mi. " * 200}))
    path.write_bytes(PACKERS[packing]("\n".join(lines).encode()))
    with pytest.raises(ConfigError, match=r"a\.jsonl\S* has a record of over \d+ MiB, .* that it is really JSON lines"):
        read_all(tmp_path, budget)


def test_batches_hold_everything_in_order_and_little_more_than_their_limit() -> None:
    items = ["ka" * (number % 7) for number in range(100)]
    found = list(batches(items, 50, len))
    assert [item for batch in found for item in batch] == items
    assert all(50 <= sum(map(len, batch)) < 50 + 12 for batch in found[:-1])
    assert list(batches([], 50, len)) == []


@pytest.mark.parametrize(
    ("line", "end"),
    [
        (
            '{"text": "%s\U0001f600"}' % ("The cat sat. " * 2_580_000),
            "read",
        ),  # four bytes per character once decoded
        ('{"text": "a", "more": [%s1]}' % ("{}," * 11_180_000), "read"),  # 64 bytes per two characters once parsed
        ('{"text": "%s\U0001f600"}' % ("The cat sat. " * 9_000_000), "refused"),  # 117 MB; it once took 1.2 GB
    ],
    ids=["wide", "nested", "too large"],
)
def test_the_largest_record_takes_less_than_a_gigabyte_and_a_larger_one_is_not_read(
    tmp_path: Path, line: str, end: str
) -> None:
    (tmp_path / "a.jsonl").write_text(line)
    assert peak_of_reading(tmp_path / "a.jsonl") == (end, pytest.approx(0, abs=1000 if end == "read" else 200))


def test_an_intact_file_whose_window_needs_too_much_memory_is_not_called_damaged(tmp_path: Path) -> None:
    wide = b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3]) + (6 << 3 | 1).to_bytes(3, "little") + b"Ka lo."  # 2 GiB
    (tmp_path / "a.txt.zst").write_bytes(wide)
    packed = bytearray(lzma.compress(b"Ka lo."))
    packed[packed.index(b"\x21\x01") + 2] = 40  # a dictionary of 4 GiB
    packed[20:24] = zlib.crc32(packed[12:20]).to_bytes(4, "little")
    (tmp_path / "a.txt.xz").write_bytes(packed)
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ConfigError, match=r"emory.*; compress it again with a smaller window \(unpack it by zstd"):
            read_all(path)


def test_the_row_groups_of_a_table_are_read_once(tmp_path: Path) -> None:
    texts = many_documents(300)
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", row_group_size=20)
    assert len(plan_shards(find_sources([tmp_path]), 20_000)) > 3
    assert read_all(tmp_path, 2000, per_shard=20_000)[1] == texts


def test_the_real_wikipedia_reads_as_documents(shared_data: Path) -> None:
    source = find_sources([shared_data / "wiki" / "enwiki-AA-0.xz"])
    with Reader(Reading(), budget=2_000_000) as reader:
        texts = [document.content for document in documents_of([next(reader.chunks(Range(source[0])))])]
    assert texts[0].startswith(b"Anarchism\n\nAnarchism is a political philosophy")
    assert not [text for text in texts if b"<doc " in text or b"</doc" in text]
    assert len(texts) > 50
