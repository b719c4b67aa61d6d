"""Atomic file writes, and JSON files that contain their own checksum."""

import hashlib
import io
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

from pydantic_core import from_json

from electra_sampler.foundation.config import ConfigError, explained

ROOT = Path(__file__).resolve().parents[2]
"""The project's root: a checkout, or the site-packages folder of an installation."""
SHIPPED = ROOT if (ROOT / "ds_configs").is_dir() else ROOT / "electra_sampler"
"""The folder of `ds_configs` and `hostfiles`: a checkout's root, or a package of the installation."""
TEMPORARY_SUFFIX = ".tmp"
UNREADABLE = (OSError, BadZipFile, zlib.error, RuntimeError)
"""Errors of reading files of a folder or an archive; the last is that of an encrypted one."""
_UNSEALED = "0" * 64
_SEAL = re.compile(rb'\{\s*"sha256": "([0-9a-f]{64})"')


class NewFile:
    """A file written piece by piece: absent until `close`, complete afterward; never created if nothing is written.

    Missing folders above it are made. A link is followed. A pipe or a character device is written to as it is; only a
    regular file is ever replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = self._temporary = path
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, content: bytes) -> None:
        """Appends bytes to the file; a failure leaves no part of it.

        Raises:
            ConfigError: the path is a block device.
        """
        if self._file is None:
            self._file = self._open()
        with _whole(self._path, self._temporary):
            self._file.write(content)
        self._digest.update(content)
        self._size += len(content)

    def _open(self) -> IO[bytes]:
        mode = stat.S_IFREG
        with suppress(FileNotFoundError):
            mode = self._path.stat().st_mode
        if stat.S_ISBLK(mode):
            raise ConfigError(f"output: {self._path} is a block device, expected a file; name another")
        if not stat.S_ISREG(mode):
            return self._path.open("wb")  # no folder and no socket
        self._temporary = with_suffix(Path(os.path.realpath(self._path)), TEMPORARY_SUFFIX)
        make_folder(self._temporary.parent)
        self._temporary.unlink(missing_ok=True)  # left by a kill; or a link, which must not be written through
        return self._temporary.open("xb")

    def close(self) -> tuple[int, str]:
        """Flushes the file to the disk and gives it its final name; returns its size and sha256."""
        if self._file is not None:
            with _whole(self._path, self._temporary), self._file as file:
                file.flush()
                if self._temporary != self._path:
                    os.fsync(file.fileno())
                    self._temporary.replace(os.path.realpath(self._path))
                    flush(self._temporary.parent)
        return self._size, self._digest.hexdigest()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder and, after the block, renames it to `path`, which must be missing or an empty folder.

    A link is followed. If the block fails, the folder is removed.
    """
    target = Path(os.path.realpath(path))
    # a new name: others may be the user's, or of a process elsewhere, and a container's processes share few numbers
    unfinished = with_suffix(target, f".{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")
    make_folder(target.parent)
    unfinished.mkdir()
    with _whole(path, unfinished):
        yield unfinished
        unfinished.rename(target)


@contextmanager
def _whole(path: Path, temporary: Path) -> Iterator[None]:
    """Removes the temporary form of `path` if the block fails; an error without a file name gets `path` as its name."""
    try:
        yield
    except BaseException as error:
        if temporary != path:
            with suppress(OSError):
                remove(temporary)
        if not isinstance(error, OSError):
            error.add_note(str(path))
        elif error.filename is None:
            error.filename = str(path)
        raise


def write_atomically(path: Path, content: bytes) -> str:
    """Replaces a file completely or not at all, even in a power failure; returns the new content's sha256."""
    file = NewFile(path)
    file.write(content)
    return file.close()[1]


def write_if_other(path: Path, content: bytes) -> None:
    """Like `write_atomically`, but leaves a file untouched if it already has this content."""
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)


def flush(path: Path) -> None:
    """Flushes a file or a folder's entries to the disk; a new name survives a power failure only after this."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take_mode(path: Path, other: Path) -> None:
    """Gives a file the mode of another one, where the file system allows it."""
    with suppress(OSError):
        shutil.copymode(other, path)


def make_folder(path: Path) -> None:
    """Makes a folder and its missing parents, and flushes their names to the disk."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    flush(path.parent)


def remove(path: Path) -> None:
    """Removes a file, a folder with its contents, or a link without its target; does nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    """The sha256 of a file's content, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(folder: Path, without: tuple[str, ...]) -> str:
    """The sha256 of the names and contents of a folder's files, without these names and those in folders below it."""
    files = sorted(entry for entry in folder.iterdir() if entry.is_file() and entry.name not in without)
    names_and_contents = b"".join(file.name.encode() + bytes.fromhex(file_sha256(file)) for file in files)
    return hashlib.sha256(names_and_contents).hexdigest()


def with_suffix(path: Path, suffix: str) -> Path:
    """The path with a suffix appended to its name."""
    return path.with_name(path.name + suffix)


def sealed(values: Mapping[str, Any]) -> bytes:
    """Returns `values` as JSON that begins with its own sha256, computed with these 64 digits set to zero."""
    text = (json.dumps({"sha256": _UNSEALED, **values}, indent=1) + "\n").encode()
    return text.replace(_UNSEALED.encode(), hashlib.sha256(text).hexdigest().encode(), 1)


def unsealed(content: bytes) -> bytes:
    """Checks and removes the checksum; returns the JSON of the values given to `sealed`.

    Raises:
        ValueError: the content differs from the output of `sealed` in any bit.
    """
    found = _SEAL.match(content)
    if found is None:
        raise ValueError("its checksum is missing")
    blank = content[: found.start(1)] + _UNSEALED.encode() + content[found.end(1) :]
    if hashlib.sha256(blank).hexdigest().encode() != found[1]:
        raise ValueError("its content does not match its checksum")
    return b"{" + content[found.end() :].removeprefix(b",")


def require_folder(path: Path, option: str = "output") -> None:
    """Checks that the path given for `option` is, or could be made, a writable folder; creates nothing.

    Raises:
        ConfigError: the path is a file or below one, or cannot be written to.
    """
    if not (existing := existing_part(path)).is_dir():
        raise ConfigError(
            f"{option}: got {path}, expected a folder, but {existing} is not a folder; name another or remove it"
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: got {path}, but {existing} is not writable; make it so, or name another folder")


def require_own(path: Path, mark: str) -> None:
    """Refuses to replace a file in which there is no `mark` of the command that is about to write it.

    Raises:
        ConfigError: such a file is there.
    """
    if path.is_file() and (content := path.read_bytes()) and mark.encode() not in content:
        raise ConfigError(
            f"output: {path} was not written by this command, which would replace it; move it away, or name another"
        )


def require_file_or_folder(path: Path, option: str, expected: str = "") -> os.stat_result:
    """Refuses pipes, sockets and devices, which may never end and cannot be read twice; returns the path's status.

    With `expected`, such as "a text file", a folder and a missing file are refused too; the message says `expected`.

    Raises:
        ConfigError: the path is of a refused kind.
        OSError: there is nothing there.
    """
    if expected and not path.is_file():
        found = "is a folder, a pipe or a device" if path.exists() else "does not exist"
        raise ConfigError(f"{option}: {path} {found}; expected {expected}")
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise ConfigError(f"{option}: {path} is a pipe, a socket or a device; give a file, or remove it")
    return status


def read_file(path: Path, option: str, expected: str = "") -> bytes:
    """Returns the content of a file that comes from the user; refuses what `require_file_or_folder` does."""
    require_file_or_folder(path, option, expected)
    return path.read_bytes()


def files_in(
    root: Path, pattern: re.Pattern[str] | None, option: str, archive: str = ""
) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of a file that a user names or, if there is a `pattern`, of each file of the folder or
    archive `root` whose name matches, sorted by name. A folder's `archive`, if it holds one, stands for the folder.

    Raises:
        ConfigError: one of them is a pipe or a device.
        UNREADABLE: one of them cannot be read.
    """
    root = root / archive if (root / archive).exists() else root
    require_file_or_folder(root, option)
    if pattern is None or (root.is_file() and root.suffix != ".zip"):
        yield root.name, root.read_bytes()
        return
    if root.is_file():
        with ZipFile(io.BytesIO(root.read_bytes())) as file:
            yield from ((name, file.read(name)) for name in sorted(file.namelist()) if pattern.fullmatch(name))
        return
    paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if not path.is_dir()}
    yield from ((name, read_file(paths[name], option)) for name in sorted(filter(pattern.fullmatch, paths)))


def read_object(path: Path, option: str, fix: str, parse: Callable[[bytes], Any] = from_json) -> dict[str, Any]:
    """Reads a file that holds one JSON object, by default as `from_json` does.

    Raises:
        ConfigError: the file holds anything else, or is a pipe or a device; the message names `option`, and `fix`
            ends it if there is something to repair.
        FileNotFoundError: there is no such file.
    """
    with explained(f"{option}: cannot read {path}: not valid JSON", fix, (ValueError, RecursionError)):
        values = parse(read_file(path, option))
    if not isinstance(values, dict):
        raise ConfigError(f"{option}: {path} holds {type(values).__name__}, expected an object; {fix}")
    return values


def existing_part(path: Path) -> Path:
    """The path itself or, if it does not exist, its nearest existing parent."""
    return next(part for part in (path.absolute(), *path.absolute().parents) if part.is_symlink() or part.exists())
