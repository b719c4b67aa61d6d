"""Reads large files of gzip and bzip2 from any place, by rapidgzip and an index of the file.

The index takes decompressing the file once, on every core. Without rapidgzip one worker reads the file from its
beginning and writes all its shards, with the same bytes.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from data_prep.sources import Source
from data_prep.unpacking import DAMAGED, is_bzip2, opened, packing_of
from foundation.command_line import print_warning, printable
from foundation.config import ConfigError
from foundation.files import TEMPORARY_SUFFIX, with_suffix
from foundation.machine import cores


def can_seek(source: Source) -> bool:
    """True if a file is of gzip or bzip2 and rapidgzip is installed."""
    with opened(source.path) as file:
        packing = packing_of(file)
    if packing is None or not packing.can_seek:
        return False
    is_installed = find_spec("rapidgzip") is not None
    if not is_installed:
        name = printable(source.name)
        print_warning(f"{name}: one worker reads it from its beginning; several can after pip install rapidgzip")
    return is_installed


def make_index(source: Source, folder: Path) -> None:
    """Decompresses a file, on every core, to write the index by which `open_sought` seeks.

    Raises:
        ConfigError: the file is damaged.
    """
    path = index_path(source, folder)
    for threads in (cores(), 1):  # several may stumble over bits within a block that look like the beginning of one
        try:
            return _write_index(source.path, threads, path)
        except (*DAMAGED, ValueError) as error:
            problem = error
    raise ConfigError(f"input: {source.path} cannot be read to the end ({problem}); replace the file")


def _write_index(path: Path, threads: int, index: Path) -> None:
    temporary = with_suffix(index, TEMPORARY_SUFFIX)
    with _opened(path, threads) as file:
        if is_bzip2(path):
            temporary.write_text(json.dumps(list(file.block_offsets().items())))
        else:
            file.export_index(str(temporary))
    temporary.replace(index)


@contextmanager
def open_sought(source: Source, folder: Path) -> Iterator[Any]:
    """Opens a compressed file by its index in the folder, so that it can be read from any place."""
    index = index_path(source, folder)
    with _opened(source.path, 1) as file:
        if is_bzip2(source.path):
            file.set_block_offsets(dict(json.loads(index.read_text())))
        else:
            file.import_index(str(index))
        yield file


def index_path(source: Source, folder: Path) -> Path:
    """The file of a compressed file's index in the folder."""
    return folder / f"index-{hashlib.blake2b(source.key.encode(), digest_size=8).hexdigest()}"


def _opened(path: Path, threads: int) -> Any:
    import rapidgzip  # type: ignore[import-not-found]

    return (rapidgzip.IndexedBzip2File if is_bzip2(path) else rapidgzip.RapidgzipFile)(
        str(path), parallelization=threads
    )
