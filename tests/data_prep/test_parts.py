"""Claims about parts: they come back block by block, and any damage to one is an error."""

import numpy as np
import pytest

from data_prep.parts import Block, PartWriter, read_part
from data_prep.records import PartEntry

MASK_BYTES = 3


def block_of(sequences):
    random = np.random.default_rng(sequences)
    lengths = random.integers(3, 9, sequences).astype(np.int32)
    ids = random.integers(0, 60_000, lengths.sum()).astype(np.uint16)
    return Block(lengths, ids, random.integers(0, 256, MASK_BYTES * sequences).astype(np.uint8))


@pytest.fixture
def part(tmp_path):
    """A part of two blocks: its path, its entry and the blocks."""
    blocks = [block_of(4), block_of(7)]
    writer = PartWriter(tmp_path / "part")
    for block in blocks:
        writer.add(block)
    assert not (tmp_path / "part").exists()
    size, digest = writer.close()
    counts = {"sequences": 11, "tokens": 0, "word_pieces": 0, "unknown": 0, "ngrams": ()}
    return tmp_path / "part", PartEntry(**counts, size=size, sha256=digest), blocks


def test_blocks_come_back(part):
    path, entry, blocks = part
    assert path.stat().st_size == entry.size
    for ours, theirs in zip(read_part(path, entry, MASK_BYTES), blocks, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_nothing_makes_no_file(tmp_path):
    assert PartWriter(tmp_path / "part").close()[0] == 0
    assert not list(tmp_path.iterdir())


def test_a_flipped_bit_a_cut_and_a_missing_file_are_errors(part):
    path, entry, _ = part
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(OSError, match="part has changed since it was written"):
            list(read_part(path, entry, MASK_BYTES))
    path.write_bytes(whole[:-1])
    with pytest.raises(OSError, match="part has changed"):
        list(read_part(path, entry, MASK_BYTES))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        list(read_part(path, entry, MASK_BYTES))
