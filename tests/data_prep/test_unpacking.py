"""Claims about opening files, compressed or not."""

import bz2
import gzip
import lzma

import pyarrow
import pytest

from data_prep.config import ConfigError
from data_prep.unpacking import DAMAGED, opened, unpacked

PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
}
TEXT = b"".join(b"Line %d of the text.\n" % number for number in range(20_000))


@pytest.mark.parametrize("kind", PACKERS)
def test_each_compression_is_recognised_by_content_and_read_over_several_streams(tmp_path, kind):
    (tmp_path / "a").write_bytes(PACKERS[kind](TEXT) + PACKERS[kind](TEXT))
    with opened(tmp_path / "a") as file:
        stream = unpacked(file)
        read = b"".join(iter(lambda: stream.read(1000), b""))
    assert read == TEXT + TEXT


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_cut_short_it_raises_what_readers_expect(tmp_path, kind, share):
    packed = PACKERS[kind](TEXT)
    (tmp_path / "a").write_bytes(packed[: max(8, int(len(packed) * share))])
    with opened(tmp_path / "a") as file, pytest.raises(DAMAGED):
        stream = unpacked(file)
        while stream.read(1000):
            pass


def test_a_plain_file_is_left_at_its_beginning(tmp_path):
    (tmp_path / "a").write_bytes(b"BZ")
    with opened(tmp_path / "a") as file:
        assert unpacked(file) is None
        assert file.read() == b"BZ"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere cannot be opened"):
        opened(tmp_path / "nowhere")
