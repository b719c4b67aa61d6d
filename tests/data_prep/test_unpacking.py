"""Claims about opening files, compressed or not, and about reading huge ones from any place."""

import bz2
import gzip
import os
import random
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from data_prep.formats import Reading
from data_prep.planning import Range, plan_shards
from data_prep.reading import Reader
from data_prep.sources import find_sources
from data_prep.unpacking import DAMAGED, make_seek_index, not_text, opened, text_per_byte, unpacked
from electra_sampler.foundation.config import ConfigError
from tests.conftest import flip_bit
from tests.data_prep import packers
from tests.data_prep.conftest import documents_of, words
from tests.data_prep.packers import bgzf

PACKERS = {suffix[1:]: pack for suffix, pack in packers.PACKERS.items() if suffix}
TEXT = b"".join(b"Line %d of the text.\n" % number for number in range(20_000))


@pytest.mark.parametrize("kind", PACKERS)
def test_the_text_of_a_file_is_estimated_from_its_beginning_though_decompressors_read_ahead(
    tmp_path: Path, kind: str
) -> None:
    """Words drawn at random: every part of the text is compressed alike."""
    text = b" ".join(random.Random(0).choices([b"%x" % number for number in range(5000)], k=700_000))
    packed = PACKERS[kind](text)
    (tmp_path / "a").write_bytes(packed)
    share = len(text) / len(packed)
    assert text_per_byte(tmp_path / "a") == pytest.approx(share, rel=0.1)
    (tmp_path / "a").write_bytes(packed[:-1000])  # damaged: the build says so
    assert text_per_byte(tmp_path / "a") == pytest.approx(share, rel=0.1)


SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"size"  # a Zstandard frame without text; pzstd's files begin with one


def read(path: Path, content: bytes) -> bytes:
    path.write_bytes(content)
    with opened(path) as file:
        stream = unpacked(file)
        return b"".join(iter(lambda: stream.read(1000), b""))


@pytest.mark.parametrize("kind", PACKERS)
def test_each_compression_is_recognized_by_content_and_read_over_several_streams(tmp_path: Path, kind: str) -> None:
    pack = PACKERS[kind]
    assert read(tmp_path / "a", pack(b"") + pack(TEXT) + pack(b"x") + pack(TEXT)) == TEXT + b"x" + TEXT


@pytest.mark.parametrize(
    ("kind", "place"),  # gzip's bytes 4 to 7 are a date, and pyarrow's Zstandard has no checksum of the content
    [(kind, place) for kind in PACKERS for place in (0, 1, 2, 3, 100, -5) if (kind, place) != ("zst", 100)],
)
def test_a_later_stream_damaged_anywhere_is_not_taken_for_the_end_of_the_file(
    tmp_path: Path, kind: str, place: int
) -> None:
    later = bytearray(PACKERS[kind](TEXT))
    later[place] ^= 0xFF
    with pytest.raises(DAMAGED):
        read(tmp_path / "a", PACKERS[kind](TEXT) + bytes(later))


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("rest", [b"\x00\x00garbage", b"Another file's end", b"B", b"\x1f", b"\xfd7z"])
def test_other_data_after_a_stream_is_an_error_that_names_its_place(tmp_path: Path, kind: str, rest: bytes) -> None:
    packed = PACKERS[kind](TEXT)
    with pytest.raises(DAMAGED, match=f"behind byte {len(packed):,} is neither another stream of .* nor only zeros"):
        read(tmp_path / "a", packed + rest)


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("zeros", [1, 4, 100_000])
def test_zeros_after_the_last_stream_are_padding_and_only_xz_has_some_between_streams(
    tmp_path: Path, kind: str, zeros: int
) -> None:
    packed = PACKERS[kind](TEXT)
    assert read(tmp_path / "a", packed + bytes(zeros)) == TEXT
    if kind == "xz":
        assert read(tmp_path / "a", packed + bytes(zeros) + packed) == TEXT + TEXT
    else:
        with pytest.raises(DAMAGED, match=f"behind byte {len(packed):,} is neither"):
            read(tmp_path / "a", packed + bytes(zeros) + packed)


@pytest.mark.skipif(not shutil.which("zstd"), reason="needs zstd")
@pytest.mark.parametrize("options", [[], ["--no-check"], ["-19"], ["--long=27", "-T2"]])
@pytest.mark.parametrize("text", [b"", b"x", b"a" * 300_000, random.Random(0).randbytes(300_000), TEXT])
def test_every_header_and_block_of_zstandard_is_read_to_its_end(
    tmp_path: Path, options: list[str], text: bytes
) -> None:
    (tmp_path / "text").write_bytes(text)
    for source in (["-c", tmp_path / "text"], ["-c"]):  # with and without the size of the text
        packed = subprocess.run(["zstd", *options, *source], input=text, capture_output=True, check=True).stdout
        assert read(tmp_path / "a", packed + packed + bytes(9)) == text + text


@pytest.mark.parametrize("sign", range(16))
def test_zstandard_frames_without_text_are_skipped(tmp_path: Path, sign: int) -> None:
    skippable = bytes([SKIPPABLE[0] + sign]) + SKIPPABLE[1:]
    packed = PACKERS["zst"](TEXT)
    assert read(tmp_path / "a", skippable + packed + skippable + packed + skippable) == TEXT + TEXT
    assert read(tmp_path / "a", skippable) == b""


@pytest.mark.parametrize(
    ("beginning", "what"),
    [
        *(
            (PACKERS[kind](TEXT), name)
            for kind, name in zip(PACKERS, ("gzip", "bzip2", "xz", "Zstandard"), strict=True)
        ),
        (SKIPPABLE + PACKERS["zst"](TEXT), "Zstandard"),
        (b"a.txt" + bytes(252) + b"ustar\x0000" + bytes(3000), "tar"),
        (b"PK\x03\x04\x14\x00", "zip"),
        ("Text as Windows calls it Unicode".encode("utf-16-le"), "binary"),
        (bytes(4096), "binary"),
    ],
)
def test_files_that_are_not_text_are_recognized_by_their_beginning(beginning: bytes, what: str) -> None:
    assert not_text(beginning[:4096]) == what


@pytest.mark.parametrize(
    "text", [b"", b"B", b"PK", b"a\x00" + b" word" * 20, b"Ka" + bytes(8), "\u65e5\u672c".encode() * 9, b"ustar"]
)
def test_text_with_a_stray_zero_byte_is_still_text(text: bytes) -> None:
    assert not_text(text) is None


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_truncated_file_raises_the_error_that_readers_expect(tmp_path: Path, kind: str, share: float) -> None:
    packed = PACKERS[kind](TEXT)
    with pytest.raises(DAMAGED):
        read(tmp_path / "a", packed[: max(8, int(len(packed) * share))])


def test_a_plain_file_is_returned_at_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"BZ")
    with opened(tmp_path / "a") as file:
        assert unpacked(file) is None
        assert file.read() == b"BZ"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere cannot be opened"):
        opened(tmp_path / "nowhere")


KINDS: dict[str, Callable[[bytes], bytes]] = {
    "a.txt.gz": gzip.compress,
    "a.txt.bz2": lambda text: bz2.compress(text, 1),
    "blocks.txt.gz": bgzf,
}
BLOCK, END = 0x314159265359, 0x177245385090  # the bits that begin a block of bzip2, and the end of a stream


def read_shards(path: Path, per_shard: float) -> list[list[str]]:
    """The documents of each shard, read by a worker of its own."""
    pytest.importorskip("rapidgzip", reason="needs rapidgzip")
    [source] = find_sources([path])
    make_seek_index(source, path.parent)
    texts = []
    for shard in chain.from_iterable(plan_shards([source], per_shard)):
        with Reader(Reading(), path.parent) as reader:
            texts.append([document.content.decode() for document in documents_of(reader.shard(shard))])
    return texts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("size", "zeros"), [(30, 0), (12_000, 0), (200_000, 0), (300, 1), (300, 5), (300, 100), (300, 100_000)]
)
def test_each_document_is_in_one_shard_even_if_the_file_is_padded_with_zeros(
    tmp_path: Path, kind: str, size: int, zeros: int
) -> None:
    texts = words(1_500_000 // size, size)
    content = "\n\n".join(texts).encode()
    (tmp_path / kind).write_bytes(KINDS[kind](content) + bytes(zeros))
    found = read_shards(tmp_path / kind, len(content) / 6)
    assert len(found) > 4
    assert [text for of_shard in found for text in of_shard] == texts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, int(path.stat().st_size * 0.3)),
        lambda path: os.truncate(path, int(path.stat().st_size * 0.99)),
        flip_bit,
    ],
    ids=["cut at a third", "cut at the end", "a flipped bit"],
)
def test_a_file_that_is_cut_short_or_damaged_is_an_error_that_names_it(
    tmp_path: Path, kind: str, damage: Callable[[Path], None]
) -> None:
    (tmp_path / kind).write_bytes(KINDS[kind]("\n\n".join(words(3000, 300)).encode()))
    damage(tmp_path / kind)
    with pytest.raises(ConfigError, match=r"\.txt\.\S+ cannot be read to the end"):
        read_shards(tmp_path / kind, 1e5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rest", [b"g", b"BZh9", b"\x1f\x8b", bytes(3) + b"garbage", b"zeros", b"empty"])
def test_what_is_behind_a_stream_is_judged_alike_in_parts_and_as_a_whole(
    tmp_path: Path, kind: str, rest: bytes
) -> None:
    packed = KINDS[kind]("\n\n".join(words(3000, 300)).encode())
    rest = {b"zeros": bytes(20) + packed, b"empty": KINDS[kind](b"") + b"garbage"}.get(rest, rest)
    (tmp_path / kind).write_bytes(packed + rest)
    [source] = find_sources([tmp_path / kind])
    said = r"\.txt\.\S+ cannot be read to the end .(behind byte .* is neither|.*cut short)"
    with pytest.raises(ConfigError, match=said) as whole, Reader(Reading()) as reader:
        list(reader.chunks(Range(source)))
    with pytest.raises(ConfigError) as parts:
        read_shards(tmp_path / kind, 1e5)
    assert parts.value.problems == whole.value.problems


def test_the_bits_that_begin_a_block_may_be_in_the_map_of_its_bytes(tmp_path: Path) -> None:
    """The map says which 16s of bytes occur, then which bytes of each: 3141, 5926, 5359 and the rest."""
    used = [*"!#$'*-.13679;<?p", "\U0001f618"]
    text = "".join(random.Random(0).choices(used, k=10_000))
    packed = bz2.compress(text.encode())
    assert f"{int.from_bytes(packed):b}".count(f"{BLOCK:048b}") == 2
    (tmp_path / "a.txt.bz2").write_bytes(packed)
    assert read_shards(tmp_path / "a.txt.bz2", 1e9) == [[text]]


def test_a_block_missing_inside_a_stream_is_an_error(tmp_path: Path) -> None:
    packed = bz2.compress("\n\n".join(words(6000, 300)).encode(), 1)
    bits = f"{int.from_bytes(packed):0{8 * len(packed)}b}"
    starts = [found.start() for found in re.finditer(f"{BLOCK:048b}", bits)]
    end = bits.index(f"{END:048b}") + 80
    bits = bits[: starts[1]] + bits[starts[2] : end]
    size = -(-len(bits) // 8)
    (tmp_path / "a.txt.bz2").write_bytes(int(bits.ljust(8 * size, "0"), 2).to_bytes(size))
    with pytest.raises(ConfigError, match=r"a\.txt\.bz2 cannot be read to the end"):
        read_shards(tmp_path / "a.txt.bz2", 1e5)
