"""Claims about indexed files."""

import errno
import os
import warnings

import numpy as np
import pytest

from data_prep.shards import IndexedFile
from electra_sampler.foundation.config import ConfigError
from tests.data_prep.conftest import write_indexed


def write(prefix, items, dtype):
    lengths = np.array([len(item) for item in items], np.int32)
    return write_indexed(prefix, np.concatenate(items).astype(dtype), lengths)


@pytest.fixture
def items():
    random = np.random.default_rng(0)
    return [random.integers(0, 250, length) for length in random.integers(1, 40, 100)]


@pytest.fixture
def megatron():
    with warnings.catch_warnings(action="ignore"):
        from megatron.core.datasets import indexed_dataset
    return indexed_dataset


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_items_are_read_as_they_were_written(tmp_path, items, dtype):
    write(tmp_path / "shard", items, dtype)
    file = IndexedFile(tmp_path / "shard")
    assert len(file) == len(items)
    assert file.data.dtype == dtype
    assert file.lengths.tolist() == [len(item) for item in items]
    assert all(np.array_equal(file[number], item) for number, item in enumerate(items))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_megatron_would_write_the_same_bytes_and_reads_the_same_items(tmp_path, items, dtype, megatron):
    import torch

    write(tmp_path / "ours", items, dtype)
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
    for item in items:
        builder.add_item(torch.from_numpy(item))
        builder.end_document()
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()
    theirs = megatron.IndexedDataset(str(tmp_path / "ours"))
    assert len(theirs) == len(items)
    assert all(np.array_equal(theirs[number], item) for number, item in enumerate(items))


def test_writing_returns_sizes_and_checksums_and_leaves_no_temporary_files(tmp_path, items):
    from hashlib import sha256

    written = write(tmp_path / "shard.mask", items, np.uint8)
    contents = {path.suffix: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {suffix: (len(content), sha256(content).hexdigest()) for suffix, content in contents.items()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard.mask.bin", "shard.mask.idx"]


def damage_index_size(folder):
    path = folder / "shard.idx"
    path.write_bytes(path.read_bytes()[:-5])


def damage_magic(folder):
    path = folder / "shard.idx"
    path.write_bytes(b"X" + path.read_bytes()[1:])


def damage_data_size(folder):
    path = folder / "shard.bin"
    path.write_bytes(path.read_bytes()[:-2])


def empty_index(folder):
    (folder / "shard.idx").write_bytes(b"")


def shorten_index(folder):
    (folder / "shard.idx").write_bytes(b"MMIDIDX")


def remove_data(folder):
    (folder / "shard.bin").unlink()


@pytest.mark.parametrize(
    "damage", [damage_index_size, damage_magic, damage_data_size, empty_index, shorten_index, remove_data]
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, items, damage):
    write(tmp_path / "shard", items, np.uint16)
    damage(tmp_path)
    with pytest.raises(ConfigError, match="shard") as caught:
        IndexedFile(tmp_path / "shard")
    assert "\n" not in str(caught.value)


def test_an_error_of_the_file_system_is_not_called_damage(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("data_prep.shards.os.open", fails)  # as a file server's failure, which may pass
    with pytest.raises(OSError, match="Stale file handle"):
        IndexedFile(tmp_path / "shard")
