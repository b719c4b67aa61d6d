"""Files that are either absent or whole, and JSON files that carry their own checksum."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from foundation.config import ConfigError

ROOT = Path(__file__).resolve().parents[1]
"""Of the project: a checkout, or the folder that pip installs packages into; what it ships lies there too."""
IS_CHECKOUT = (ROOT / "Makefile").is_file()
TEMPORARY_SUFFIX = ".tmp"
_UNSEALED = "0" * 64
_SEAL = re.compile(rb'\{\s*"sha256": "([0-9a-f]{64})"')


class NewFile:
    """A file written piece by piece: absent until it is closed, whole from then on. Nothing written, no file."""

    def __init__(self, path: Path) -> None:
        self._path, self._temporary = path, with_suffix(path, TEMPORARY_SUFFIX)
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, content: bytes) -> None:
        """Appends some bytes."""
        if self._file is None:
            self._file = self._temporary.open("wb")
        self._file.write(content)
        self._digest.update(content)
        self._size += len(content)

    def close(self) -> tuple[int, str]:
        """Gives the file its name, once it is on the disk; returns its size and sha256."""
        if self._file is not None:
            with self._file as file:
                file.flush()
                os.fsync(file.fileno())
            self._temporary.replace(self._path)
            flush(self._path.parent)
        return self._size, self._digest.hexdigest()


def write_atomically(path: Path, content: bytes) -> str:
    """Writes a file that is either absent or whole, whenever the power fails; returns its sha256."""
    file = NewFile(path)
    file.write(content)
    return file.close()[1]


def write_if_other(path: Path, content: bytes) -> None:
    """Writes a file as `write_atomically` does; leaves alone one that has this content already."""
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)


def flush(path: Path) -> None:
    """Flushes a file, or a folder's entries, to the disk: a new name survives a power failure only after this."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Makes a folder and those it lies in, as far as they are missing, and flushes their names."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    flush(path.parent)


def remove(path: Path) -> None:
    """Removes a file, a folder with all it holds, or a link but not what it points to; nothing where nothing is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    """The sha256 of a file's content, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def with_suffix(path: Path, suffix: str) -> Path:
    """The path with a suffix after those it has."""
    return path.with_name(path.name + suffix)


def sealed(values: Mapping[str, Any]) -> bytes:
    """JSON that begins with the sha256 of the whole text, taken with those 64 digits as zeros."""
    text = (json.dumps({"sha256": _UNSEALED, **values}, indent=1) + "\n").encode()
    return text.replace(_UNSEALED.encode(), hashlib.sha256(text).hexdigest().encode(), 1)


def unsealed(content: bytes) -> bytes:
    """The JSON that was given to `sealed`.

    Raises:
        ValueError: the content is not, to the last bit, what `sealed` returned.
    """
    found = _SEAL.match(content)
    if found is None:
        raise ValueError("its checksum is missing")
    blank = content[: found.start(1)] + _UNSEALED.encode() + content[found.end(1) :]
    if hashlib.sha256(blank).hexdigest().encode() != found[1]:
        raise ValueError("its content does not fit its checksum")
    return b"{" + content[found.end() :].removeprefix(b",")


def require_folder(path: Path, option: str = "output") -> None:
    """Refuses a path, given as this option, that can be no folder to write to; makes nothing.

    Raises:
        ConfigError: it is a file, or would lie below one; or it cannot be written to.
    """
    if not (existing := existing_part(path)).is_dir():
        raise ConfigError(f"{option}: got {path}, expected a folder, but {existing} is none; name another or remove it")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: got {path}, but {existing} cannot be written to; name another folder")


def existing_part(path: Path) -> Path:
    """The path itself or, of what it would lie in, the nearest that is there."""
    return next(part for part in (path.absolute(), *path.absolute().parents) if os.path.lexists(part))
