"""Claims about reading files in stretches, by several workers."""

import bz2
import json
import pickle
import random
import re
from itertools import islice

import pyarrow
import pytest
from pyarrow import parquet

from data_prep.chunks import divide, place_of
from data_prep.formats import Reading
from data_prep.pieces import Stretch, read
from data_prep.sources import find_sources
from foundation.config import ConfigError

from .packers import IN_BLOCKS, bgzf
from .test_chunks import many_documents, read_all


def words(count, size):
    """Documents of about `size` bytes that hardly compress."""
    draw = random.Random(0)
    return [" ".join(f"{draw.randrange(1 << 20):x}" for _ in range(1 + size // 6)) for _ in range(count)]


def readers(path, budget):
    """Number of units of a file that have text."""
    units = divide(find_sources([path]), budget, Reading())
    return sum(any(True for _ in unit.chunks(budget, Reading())) for unit in units)


@pytest.mark.parametrize("packing", IN_BLOCKS)
@pytest.mark.parametrize("budget", [400, 1001, 7000])
@pytest.mark.parametrize("size", [30, 300, 12_000])
def test_several_workers_read_each_document_of_a_file_in_blocks_once(tmp_path, packing, budget, size):
    """The longest documents run on through several stretches and blocks."""
    texts = words(100_000 // size, size)
    path = tmp_path / f"a.txt{packing}"
    path.write_bytes(IN_BLOCKS[packing]("\n\n".join(texts).encode()))
    chunks, found = read_all(path, budget)
    assert found == texts
    assert sum(unit.size for unit in divide(find_sources([path]), budget, Reading())) == path.stat().st_size
    assert readers(path, budget) > 1
    assert len({chunk.key for chunk in chunks}) == len(chunks)
    places = [place_of(chunk.number) for chunk in chunks]
    assert places == sorted(places)


@pytest.mark.parametrize("packing", IN_BLOCKS)
@pytest.mark.parametrize("shift", range(3))
def test_documents_that_end_where_blocks_end_are_read_once(tmp_path, packing, shift):
    texts = [f"{number:07d}." for number in range(4000)]  # 500 documents of ten bytes per block
    content = b"\n" * shift + "\n\n".join(texts).encode()
    (tmp_path / f"a.txt{packing}").write_bytes(IN_BLOCKS[packing](content))
    assert read_all(tmp_path, 900)[1] == texts


@pytest.mark.parametrize("packing", IN_BLOCKS)
def test_records_are_read_once_by_several_workers(tmp_path, packing):
    texts = many_documents(500)
    lines = "\n".join(json.dumps({"text": text}) for text in texts)
    path = tmp_path / f"a.jsonl{packing}"
    path.write_bytes(IN_BLOCKS[packing](b"\xef\xbb\xbf" + lines.encode()))
    assert read_all(path, 900)[1] == texts
    assert readers(path, 900) > 3


def test_both_sides_of_a_stretch_cut_a_document_without_an_end_in_the_same_place(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.pieces._BLOCK", 900)
    monkeypatch.setattr("data_prep.pieces.BEGINNING", 700)
    numbers = [f"{number}" for number in range(40_000)]
    (tmp_path / "a.txt.bz2").write_bytes(IN_BLOCKS[".bz2"](" ".join(numbers).encode()))
    [source] = find_sources([tmp_path])
    stretches = [Stretch(source, start, min(start + 1000, source.size)) for start in range(0, source.size, 1000)]
    pieces = [list(read(stretch, 1000, Reading("file"), longest=4000)) for stretch in stretches]
    assert sum(map(bool, pieces)) > 5
    joined = [piece for of_stretch in pieces for piece in of_stretch]
    assert b"".join(piece.content for piece in joined).decode().split() == numbers
    assert [piece.cut for piece in joined] == [True] * (len(joined) - 1) + [False]


@pytest.mark.parametrize("packing", IN_BLOCKS)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_file_in_blocks_that_is_cut_short_is_an_error_that_names_it(tmp_path, packing, share):
    packed = IN_BLOCKS[packing]("\n\n".join(many_documents(2000)).encode())
    (tmp_path / f"a.txt{packing}").write_bytes(packed[: int(len(packed) * share)])
    with pytest.raises(ConfigError, match=r"a\.txt\.\w+ cannot be read to the end"):
        read_all(tmp_path, 3000)


@pytest.mark.parametrize("packing", IN_BLOCKS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_beginning_of_any_block_is_an_error_that_names_the_file(tmp_path, packing, place):
    pack = IN_BLOCKS[packing]
    first = pack("\n\n".join(many_documents(200)).encode())
    later = bytearray(pack("\n\n".join(many_documents(100)).encode()))
    later[place] ^= 0xFF
    (tmp_path / f"a.txt{packing}").write_bytes(first + bytes(later) + first)
    with pytest.raises(ConfigError, match=r"a\.txt\.\w+ cannot be read to the end"):
        read_all(tmp_path, 3000)


@pytest.mark.parametrize("follower", [b"", b"\x50\x2a\x4d\x18\x04\x00\x00\x00size"])
def test_frames_that_no_header_of_pzstd_announces_are_read(tmp_path, follower):
    """Nor does it matter that the only header announces another size."""
    texts = words(400, 300)
    parts = [("\n\n".join(texts[start : start + 100]) + "\n\n").encode() for start in range(0, 400, 100)]
    header = b"\x50\x2a\x4d\x18\x04\x00\x00\x00\x07\x00\x00\x00"
    frames = [pyarrow.compress(part, "zstd", asbytes=True) for part in parts]
    (tmp_path / "a.txt.zst").write_bytes(header + follower.join(frames))
    assert read_all(tmp_path, 3000)[1] == texts
    (tmp_path / "a.txt.zst").write_bytes(header + follower.join(frames)[:-9])
    with pytest.raises(ConfigError, match=r"a\.txt\.zst cannot be read to the end"):
        read_all(tmp_path, 3000)


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="zeros within a gzip file pass for padding")
@pytest.mark.parametrize("budget", [3000, 10**9])
def test_zeros_in_place_of_a_block_of_bgzf_are_an_error_that_names_the_file(tmp_path, budget):
    packed = bytearray(bgzf("\n\n".join(words(100, 300)).encode()))
    second, third = (found.start() for found in islice(re.finditer(rb"\x1f\x8b\x08\x04", packed), 1, 3))
    packed[second:third] = bytes(third - second)
    (tmp_path / "a.txt.gz").write_bytes(packed)
    with pytest.raises(ConfigError, match=r"a\.txt\.gz cannot be read to the end"):
        read_all(tmp_path, budget)


def test_several_workers_read_the_blocks_of_one_bzip2_stream(tmp_path):
    texts = many_documents(30_000)
    (tmp_path / "a.txt.bz2").write_bytes(bz2.compress("\n\n".join(texts).encode(), 1))
    size = (tmp_path / "a.txt.bz2").stat().st_size
    assert readers(tmp_path, size // 4) > 3
    assert read_all(tmp_path, size // 4)[1] == texts


def test_several_workers_read_the_row_groups_of_a_table(tmp_path):
    texts = many_documents(300)
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", row_group_size=20)
    assert readers(tmp_path, 2000) > 3
    assert read_all(tmp_path, 2000)[1] == texts


@pytest.mark.parametrize("packing", ["", *IN_BLOCKS])
def test_units_hold_names_and_ranges_and_no_text(tmp_path, packing):
    text = "\n\n".join(words(200, 600)).encode()
    (tmp_path / f"a.txt{packing}").write_bytes(IN_BLOCKS.get(packing, bytes)(text))
    units = list(divide(find_sources([tmp_path]), 2000, Reading()))
    assert len(units) > 10
    assert sum(len(pickle.dumps(unit)) for unit in units) < 1000 * len(units)
