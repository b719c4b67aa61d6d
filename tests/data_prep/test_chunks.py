"""Claims about the division of files into documents and chunks."""

import bz2
import gzip
import json
import lzma

import pytest

from data_prep.chunks import divide, sample_documents
from data_prep.formats import Reading
from data_prep.sources import find_sources
from foundation.config import ConfigError

from .conftest import peak_of_reading, read_chunks

PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, "": bytes}


def read_all(path, budget=10_000, boundary="blank_line"):
    reading = Reading(boundary)
    chunks = list(read_chunks(find_sources([path]), budget, reading))
    found = [document for chunk in chunks for piece in chunk.pieces for document in piece.documents(reading)]
    return chunks, [document.content.decode() for document in found]


def many_documents(count=200, size=300):
    return [f"Document {number}. " + "word " * (size // 5) + f"\nEnd of {number}." for number in range(count)]


def wiki(texts):
    return "".join(f'<doc id="{n}" url="u" title="T">\n{text}\n\nmore\n</doc>\n' for n, text in enumerate(texts))


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("budget", [1000, 17_001, 10**9])
def test_blank_lines_separate_documents_for_any_chunk_size(tmp_path, packing, budget):
    texts = many_documents()
    (tmp_path / f"a.txt{packing}").write_bytes(PACK[packing]("\n\n".join(texts).encode()))
    chunks, found = read_all(tmp_path, budget)
    assert found == texts
    assert len(chunks) == 1 if budget > 10**6 else len(chunks) > 3


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("budget", [1000, 10**9])
def test_wikiextractor_blocks_are_documents_with_blank_lines_inside(tmp_path, packing, budget):
    texts = many_documents()
    (tmp_path / f"wiki_00{packing}").write_bytes(PACK[packing](wiki(texts).encode()))
    _, found = read_all(tmp_path, budget)
    assert found == [f"{text}\n\nmore" for text in texts]


def test_a_boundary_across_two_blocks_of_the_reader_is_recognized(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.pieces._BLOCK", 101)
    monkeypatch.setattr("data_prep.pieces.BEGINNING", 7)
    texts = many_documents(50)
    for name, pack in PACK.items():
        (tmp_path / f"a.txt{name}").write_bytes(pack("\n \t\r\n".join(texts).encode()))
        chunks, found = read_all(tmp_path / f"a.txt{name}", 900)
        assert found == texts
        assert len(chunks) > 10


def test_a_chunk_holds_about_its_budget(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("\n\n".join(many_documents(100)))
    chunks, _ = read_all(tmp_path, 10_000)
    sizes = [sum(piece.size for piece in chunk.pieces) for chunk in chunks]
    assert max(sizes) < 10_000 + 1_000
    assert sum(sizes) == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert len({chunk.key for chunk in chunks}) == len(chunks)


def test_small_files_share_a_chunk_but_not_a_document(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02d}.txt").write_text(f"Text {number}")
    chunks, found = read_all(tmp_path)
    assert len(chunks) == 1
    assert found == [f"Text {number}" for number in range(30)]


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("budget", [1000, 50_000, 10**9])
def test_the_units_cover_every_byte_on_disk_once(tmp_path, packing, budget):
    for name in "abc":
        content = "\n\n".join(f"{name} {text}" for text in many_documents(300)).encode()
        (tmp_path / f"{name}.txt{packing}").write_bytes(PACK[packing](content))
    units = list(divide(find_sources([tmp_path]), budget, Reading()))
    assert [unit.number for unit in units] == list(range(len(units)))
    assert sum(unit.size for unit in units) == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_file_can_be_one_document(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n")
    assert read_all(tmp_path, boundary="file")[1] == ["One.\n\nTwo."]


def test_windows_line_ends_separate_documents_too(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"One.\r\nStill one.\r\n\r\nTwo.\r\n")
    assert read_all(tmp_path)[1] == ["One.\r\nStill one.", "Two."]


def test_an_empty_wikiextractor_document_is_reported(tmp_path):
    (tmp_path / "wiki_00").write_text('<doc id="1">\n</doc>\n<doc id="2">\nText\n</doc>\n')
    assert read_all(tmp_path)[1] == ["", "Text"]


def test_compression_is_recognized_by_content(tmp_path):
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"One.\n\nTwo."))
    assert read_all(tmp_path)[1] == ["One.", "Two."]


def test_keys_do_not_depend_on_the_location_of_the_input(tmp_path):
    keys = []
    for place in ("here", "there/deeper"):
        folder = tmp_path / place / "corpus"
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "a.txt").write_text("\n\n".join(many_documents(20)))
        (folder / "b.txt").write_text("b")
        for given in (folder, folder / "sub" / "*.txt"):
            keys.append([chunk.key for chunk in read_chunks(find_sources([given]), 1000, Reading())])
    assert keys[0] == keys[2]
    assert keys[1] == keys[3]
    assert keys[0][0] == "0/b.txt@0"


def test_a_sample_is_spread_over_the_whole_corpus(tmp_path):
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("\n\n".join(many_documents(100)))
    sample = list(sample_documents(find_sources([tmp_path]), 20_000, Reading()))
    assert 20_000 < sum(map(len, sample)) < 30_000
    assert sum(text.startswith("Document 0.") for text in sample) == 10


def test_a_sample_of_long_records_is_not_much_larger_than_requested(tmp_path):
    for number in range(50):
        (tmp_path / f"{number:02d}.jsonl").write_text(json.dumps({"text": f"{number} " + "word " * 2_000}) + "\n")
    sample = list(sample_documents(find_sources([tmp_path]), 20_000, Reading()))
    assert 20_000 < sum(map(len, sample)) < 60_000
    assert len({text.split()[0] for text in sample}) == len(sample)
    assert int(sample[-1].split()[0]) > 25


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".xz"])
def test_a_truncated_compressed_file_is_an_error_that_names_it(tmp_path, packing):
    content = PACK[packing]("\n\n".join(many_documents(2000)).encode())
    (tmp_path / f"broken.txt{packing}").write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=r"broken\.txt"):
        read_all(tmp_path)


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".xz"])
def test_a_damaged_later_stream_is_an_error_that_names_the_file(tmp_path, packing):
    stream = PACK[packing]("\n\n".join(many_documents(2000)).encode() + b"\n\n")
    (tmp_path / f"two.txt{packing}").write_bytes(stream + stream)
    assert len(read_all(tmp_path)[1]) == 4000
    (tmp_path / f"two.txt{packing}").write_bytes(stream + b"\xff" + stream[1:])
    with pytest.raises(ConfigError, match=rf"two\.txt{packing} cannot be read to the end"):
        read_all(tmp_path)


@pytest.mark.parametrize("inner", [".gz", ".bz2", ".xz"])
def test_doubly_compressed_files_are_refused_by_name(tmp_path, inner):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(PACK[inner](b"One.\n\nTwo.")))
    with pytest.raises(ConfigError, match=r"a\.txt\.gz holds \w+ data instead of text"):
        read_all(tmp_path)


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("budget", [10, 900, 10**6])
@pytest.mark.parametrize("place", [0, 5, 9])
def test_a_record_too_large_is_refused_by_name_at_any_place_and_chunk_size(
    tmp_path, monkeypatch, packing, budget, place
):
    monkeypatch.setattr("data_prep.pieces.LONGEST_RECORD", 1000)
    monkeypatch.setattr("data_prep.pieces._BLOCK", 100)
    lines = [json.dumps({"text": "Ka lo mi. " * 50})] * 9
    path = tmp_path / f"a.jsonl{packing}"
    path.write_bytes(PACK[packing]("\n".join(lines).encode()))
    assert len(read_all(tmp_path, budget)[1]) == 9
    lines.insert(place, json.dumps({"text": "Ka lo mi. " * 110}))
    path.write_bytes(PACK[packing]("\n".join(lines).encode()))
    with pytest.raises(ConfigError, match=r"a\.jsonl\S* has a record of over \d+ MiB, .* that it is really JSON lines"):
        read_all(tmp_path, budget)


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
def test_the_largest_record_takes_less_than_a_gigabyte_and_a_larger_one_is_not_read(tmp_path, line, end):
    (tmp_path / "a.jsonl").write_text(line)
    assert peak_of_reading(tmp_path / "a.jsonl") == (end, pytest.approx(0, abs=1000 if end == "read" else 200))


def test_a_file_that_shrinks_before_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(many_documents(50)))
    [chunk] = read_chunks(find_sources([path]), 10**9, Reading())
    path.write_text("gone")
    with pytest.raises(ConfigError, match=r"a\.txt changed"):
        list(chunk.pieces[0].documents(Reading()))


def test_the_real_wikipedia_reads_as_documents(shared_data):
    source = find_sources([shared_data / "wiki" / "enwiki-AA-0.xz"])
    chunk = next(iter(read_chunks(source, 2_000_000, Reading())))
    texts = [document.content for document in chunk.pieces[0].documents(Reading())]
    assert texts[0].startswith(b"Anarchism\n\nAnarchism is a political philosophy")
    assert not any(b"<doc " in text or b"</doc" in text for text in texts)
    assert len(texts) > 50
