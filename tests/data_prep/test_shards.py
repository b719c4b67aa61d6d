"""Claims about indexed files."""

import errno
import os
import warnings
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.shards import IndexedFile
from electra_sampler.foundation.config import ConfigError
from tests.data_prep.conftest import write_indexed


def write(prefix: Path, items: Sequence[np.ndarray], dtype: type[np.generic]) -> dict[str, tuple[int, str]]:
    lengths = np.array([len(item) for item in items], np.int32)
    return write_indexed(prefix, np.concatenate(items).astype(dtype), lengths)


@pytest.fixture
def items() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 250, length) for length in random.integers(1, 40, 100)]


@pytest.fixture
def megatron() -> Any:
    with warnings.catch_warnings(action="ignore"):
        from megatron.core.datasets import indexed_dataset
    return indexed_dataset


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_items_are_read_as_they_were_written_by_this_reader_and_by_megatrons_which_would_write_the_same_bytes(
    tmp_path: Path, items: list[np.ndarray], dtype: type[np.generic], megatron: Any
) -> None:
    import torch

    write(tmp_path / "ours", items, dtype)
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
    for item in items:
        builder.add_item(torch.from_numpy(item))
        builder.end_document()
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()
    ours, theirs = IndexedFile(tmp_path / "ours"), megatron.IndexedDataset(str(tmp_path / "ours"))
    assert ours.data.dtype == dtype
    assert ours.lengths.tolist() == [len(item) for item in items]
    for file in (ours, theirs):
        assert len(file) == len(items)
        assert all(np.array_equal(file[number], item) for number, item in enumerate(items))


def test_writing_returns_sizes_and_checksums_and_leaves_no_temporary_files(
    tmp_path: Path, items: list[np.ndarray]
) -> None:
    written = write(tmp_path / "shard.mask", items, np.uint8)
    contents = {path.suffix: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {suffix: (len(content), sha256(content).hexdigest()) for suffix, content in contents.items()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard.mask.bin", "shard.mask.idx"]


@pytest.mark.parametrize(
    ("suffix", "damaged"),
    [
        (".idx", lambda content: content[:-5]),
        (".idx", lambda content: b"X" + content[1:]),
        (".idx", lambda content: content[:7]),
        (".idx", lambda content: b""),
        (".bin", lambda content: content[:-2]),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(
    suffix: str, damaged: Callable[[bytes], bytes], items: list[np.ndarray], tmp_path: Path
) -> None:
    write(tmp_path / "shard", items, np.uint16)
    path = tmp_path / f"shard{suffix}"
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(ConfigError, match="shard") as caught:
        IndexedFile(tmp_path / "shard")
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(20)  # the pipe has no writer
def test_a_missing_file_or_a_pipe_is_an_error_that_names_it(items: list[np.ndarray], tmp_path: Path) -> None:
    write(tmp_path / "shard", items, np.uint16)
    for suffix in (".bin", ".idx"):
        (tmp_path / f"shard{suffix}").unlink()
        with pytest.raises(ConfigError, match=r"shard: cannot be read as an indexed file .*No such file"):
            IndexedFile(tmp_path / "shard")
    os.mkfifo(tmp_path / "shard.idx")
    with pytest.raises(ConfigError, match="shard: cannot be read as an indexed file"):
        IndexedFile(tmp_path / "shard")


def test_an_error_of_the_file_system_is_not_called_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("data_prep.shards.os.open", fails)  # as a file server's failure, which may pass
    with pytest.raises(OSError, match="Stale file handle"):
        IndexedFile(tmp_path / "shard")
