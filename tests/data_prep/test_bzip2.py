"""Claims about the blocks of bzip2."""

import bz2
import random
from itertools import pairwise

import pytest

from data_prep.bzip2 import BLOCK, END, Blocks, find_block


def text_of(size: int, seed: int = 0) -> bytes:
    return b"".join(b"%x\n" % random.Random(seed * 10**6 + number).randrange(1 << 60) for number in range(size // 15))


@pytest.fixture
def packed(tmp_path):
    """Texts of one, several and no blocks, in streams one after the other, and the bits at which blocks begin."""
    texts = [text_of(450_000), text_of(30_000, 1), b"", text_of(250_000, 2)]
    content = b"".join(bz2.compress(text, 1) for text in texts)
    (tmp_path / "a.bz2").write_bytes(content)
    bits = f"{int.from_bytes(content):0{8 * len(content)}b}"
    starts, at = [], bits.find(f"{BLOCK:048b}")
    while at != -1:
        starts.append(at)
        at = bits.find(f"{BLOCK:048b}", at + 1)
    assert bits.count(f"{END:048b}") == len(texts)
    return tmp_path / "a.bz2", b"".join(texts), starts


@pytest.mark.parametrize("read", [7, 1000, 1 << 20])
def test_blocks_are_found_at_any_bit(packed, monkeypatch, read):
    monkeypatch.setattr("data_prep.bzip2._READ", read)
    path, _, starts = packed
    assert len({start % 8 for start in starts}) > 3
    found = []
    with path.open("rb") as file:
        while (place := find_block(file, found[-1] + 1 if found else 0)) is not None:
            found.append(place)
            assert find_block(file, place, place + 1) == place
            assert find_block(file, place, place) is None
    assert found == [start // 8 for start in starts]


def test_each_block_is_decompressed_by_itself_and_in_any_ranges(packed):
    path, text, starts = packed
    size = path.stat().st_size
    with path.open("rb") as file:
        for parts in (1, 2, 5, 37):
            edges = [size * part // parts for part in range(parts + 1)]
            firsts = [(find_block(file, *bounds), bounds[1]) for bounds in pairwise(edges)]
            found = [Blocks(file, first, end).read() for first, end in firsts if first is not None]
            assert b"".join(found) == text
        assert Blocks(file, 4, None).read() == text
        assert Blocks(file, starts[1] // 8, starts[2] // 8).read() in text


@pytest.mark.parametrize("lost", [1, 4, 11, 1000])
def test_a_file_cut_short_is_an_error(packed, lost):
    path, _, _ = packed
    path.write_bytes(path.read_bytes()[:-lost])
    with path.open("rb") as file, pytest.raises((EOFError, OSError)):
        Blocks(file, 4, None).read()


def test_a_flipped_bit_in_a_block_is_an_error(packed):
    path, _, starts = packed
    content = bytearray(path.read_bytes())
    content[starts[2] // 8 + 3000] ^= 4
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises((EOFError, OSError)):
        Blocks(file, 4, None).read()


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("ranges", [1, 9])
def test_a_block_whose_beginning_is_damaged_is_never_lost(packed, number, ranges):
    """In each range the file is read as if the others were another worker's."""
    path, _, starts = packed
    content = bytearray(path.read_bytes())
    content[starts[number] // 8 + 2] ^= 1
    path.write_bytes(content)
    edges = [len(content) * part // ranges for part in range(ranges + 1)]
    with path.open("rb") as file, pytest.raises((EOFError, OSError)):
        for bounds in pairwise(edges):
            if (first := find_block(file, *bounds)) is not None:
                Blocks(file, first, bounds[1]).read()


@pytest.mark.xfail(strict=True, raises=EOFError, reason="a block is taken to begin wherever its 48 bits are")
def test_the_bits_that_begin_a_block_may_be_in_the_map_of_its_bytes(tmp_path):
    """The map says which 16s of bytes occur, then which bytes of each: here 3141, 5926, 5359, and those of the rest."""
    used = [*"!#$'*-.13679;<?p", "\U0001f618"]
    text = "".join(random.Random(0).choices(used, k=10_000)).encode()
    packed = bz2.compress(text)
    assert bz2.decompress(packed) == text
    assert f"{int.from_bytes(packed):b}".count(f"{BLOCK:048b}") == 2
    (tmp_path / "a.bz2").write_bytes(packed)
    with (tmp_path / "a.bz2").open("rb") as file:
        assert Blocks(file, 4, None).read() == text


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="the checksum of a whole stream is not compared")
def test_a_block_missing_inside_a_stream_is_an_error(packed):
    path, _, starts = packed
    bits = f"{int.from_bytes(path.read_bytes()):0{8 * path.stat().st_size}b}"
    end = bits.index(f"{END:048b}") + 80
    bits = bits[: starts[1]] + bits[starts[2] : end]
    path.write_bytes(int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8)))
    with pytest.raises(OSError):
        bz2.decompress(path.read_bytes())
    with path.open("rb") as file, pytest.raises((EOFError, OSError)):
        Blocks(file, 4, None).read()


@pytest.mark.parametrize("rest", [b"B", b"BZh9", b"\0\0garbage"])
def test_other_data_after_the_last_stream_are_an_error(packed, rest):
    path, text, _ = packed
    path.write_bytes(path.read_bytes() + bytes(100))
    with path.open("rb") as file:
        assert Blocks(file, 4, None).read() == text
    path.write_bytes(path.read_bytes() + rest)
    with path.open("rb") as file, pytest.raises(OSError, match="after a stream"):
        Blocks(file, 4, None).read()
