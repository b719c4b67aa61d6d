"""Claims about reading large files of gzip and bzip2 from any place, by rapidgzip."""

import bz2
import gzip
import random
import re
from itertools import chain, islice

import pytest

from data_prep.formats import Reading
from data_prep.planning import Range, plan_shards
from data_prep.reading import Reader
from data_prep.sources import find_sources
from data_prep.unpacking import make_seek_index
from electra_sampler.foundation.config import ConfigError

from .packers import bgzf
from .test_reading import words

pytest.importorskip("rapidgzip", reason="needs rapidgzip")
KINDS = {"a.txt.gz": gzip.compress, "a.txt.bz2": lambda text: bz2.compress(text, 1), "blocks.txt.gz": bgzf}
BLOCK, END = 0x314159265359, 0x177245385090  # the bits that begin a block of bzip2, and the end of a stream


def read_shards(path, per_shard):
    """The documents of each shard, read by a worker of its own."""
    [source] = find_sources([path])
    make_seek_index(source, path.parent)
    texts = []
    for shard in chain.from_iterable(plan_shards([source], per_shard)):
        with Reader(Reading(), path.parent) as reader:
            chunks = list(reader.shard(shard))
        texts.append([document.content.decode() for chunk in chunks for document in chunk.documents(Reading())])
    return texts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [30, 12_000, 200_000])
def test_each_document_is_in_one_shard(tmp_path, kind, size):
    texts = words(1_500_000 // size, size)
    content = "\n\n".join(texts).encode()
    (tmp_path / kind).write_bytes(KINDS[kind](content))
    found = read_shards(tmp_path / kind, len(content) / 6)
    assert len(found) > 4
    assert [text for of_shard in found for text in of_shard] == texts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.3, 0.99])
def test_a_file_that_is_cut_short_is_an_error_that_names_it(tmp_path, kind, share):
    packed = KINDS[kind]("\n\n".join(words(3000, 300)).encode())
    (tmp_path / kind).write_bytes(packed[: int(len(packed) * share)])
    with pytest.raises(ConfigError, match=r"\.txt\.\S+ cannot be read to the end"):
        read_shards(tmp_path / kind, 1e5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_an_error_that_names_the_file(tmp_path, kind):
    packed = bytearray(KINDS[kind]("\n\n".join(words(3000, 300)).encode()))
    packed[len(packed) // 2] ^= 16
    (tmp_path / kind).write_bytes(packed)
    with pytest.raises(ConfigError, match=r"\.txt\.\S+ cannot be read to the end"):
        read_shards(tmp_path / kind, 1e5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeros", [1, 5, 100, 100_000])
def test_a_file_may_be_padded_with_zeros(tmp_path, kind, zeros):
    texts = words(3000, 300)
    content = "\n\n".join(texts).encode()
    (tmp_path / kind).write_bytes(KINDS[kind](content) + bytes(zeros))
    found = read_shards(tmp_path / kind, len(content) / 6)
    assert len(found) > 4
    assert [text for of_shard in found for text in of_shard] == texts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rest", [b"g", b"BZh9", b"\x1f\x8b", bytes(3) + b"garbage", b"zeros", b"empty"])
def test_what_is_behind_a_stream_is_judged_alike_in_parts_and_as_a_whole(tmp_path, kind, rest):
    packed = KINDS[kind]("\n\n".join(words(3000, 300)).encode())
    rest = {b"zeros": bytes(20) + packed, b"empty": KINDS[kind](b"") + b"garbage"}.get(rest, rest)
    (tmp_path / kind).write_bytes(packed + rest)
    [source] = find_sources([tmp_path / kind])
    with pytest.raises(ConfigError, match=r"behind byte .* is neither|cut short") as whole, Reader(Reading()) as reader:
        list(reader.chunks(Range(source)))
    with pytest.raises(ConfigError) as parts:
        read_shards(tmp_path / kind, 1e5)
    assert parts.value.problems == whole.value.problems


def test_zeros_in_place_of_a_block_of_bgzf_are_an_error_that_names_the_file(tmp_path):
    packed = bytearray(bgzf("\n\n".join(words(100, 300)).encode()))
    second, third = (found.start() for found in islice(re.finditer(rb"\x1f\x8b\x08\x04", packed), 1, 3))
    packed[second:third] = bytes(third - second)
    (tmp_path / "a.txt.gz").write_bytes(packed)
    with pytest.raises(ConfigError, match=r"a\.txt\.gz cannot be read to the end"):
        read_shards(tmp_path / "a.txt.gz", 3000)


def test_the_bits_that_begin_a_block_may_be_in_the_map_of_its_bytes(tmp_path):
    """The map says which 16s of bytes occur, then which bytes of each: 3141, 5926, 5359 and the rest."""
    used = [*"!#$'*-.13679;<?p", "\U0001f618"]
    text = "".join(random.Random(0).choices(used, k=10_000))
    packed = bz2.compress(text.encode())
    assert f"{int.from_bytes(packed):b}".count(f"{BLOCK:048b}") == 2
    (tmp_path / "a.txt.bz2").write_bytes(packed)
    assert read_shards(tmp_path / "a.txt.bz2", 1e9) == [[text]]


def test_a_block_missing_inside_a_stream_is_an_error(tmp_path):
    packed = bz2.compress("\n\n".join(words(6000, 300)).encode(), 1)
    bits = f"{int.from_bytes(packed):0{8 * len(packed)}b}"
    starts = [found.start() for found in re.finditer(f"{BLOCK:048b}", bits)]
    end = bits.index(f"{END:048b}") + 80
    bits = bits[: starts[1]] + bits[starts[2] : end]
    damaged = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8))
    with pytest.raises(OSError):
        bz2.decompress(damaged)
    (tmp_path / "a.txt.bz2").write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"a\.txt\.bz2 cannot be read to the end"):
        read_shards(tmp_path / "a.txt.bz2", 1e5)
