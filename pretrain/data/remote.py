"""Shards behind a URL: whole shards fetched ahead of need into a bounded cache that all ranks of a machine share.

    CACHE/HASH/manifest.json, tokenizer/    one folder per remote folder; HASH is the sha256 of its manifest
    CACHE/HASH/shard-00000.bin ...          fetched shards, each file under its name only once its sha256 matches

CACHE is `$XDG_CACHE_HOME/electra-sampler`, by default in `~/.cache`. Each process has one thread that fetches; a lock
lets one of them at a time fetch, and the others find its files. A lost connection is retried forever during training.
"""

import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.manifest import MANIFEST_NAME, Manifest, ShardEntry, load_manifest
from data_prep.tokens import TOKENIZER_NAME
from foundation.config import ConfigError, LocalProblem
from foundation.files import NewFile, file_sha256, make_folder, with_suffix, write_atomically, write_if_other
from foundation.locks import Held, Lock

BLOCK = 8 << 20
"""Bytes per request: a lost connection costs at most this."""
OPENING_PATIENCE = 20.0
"""Seconds of retries when a folder is opened, where a wrong name is more likely than an outage."""
LONGEST_PAUSE = 60.0
"""Seconds between two attempts at most; the pause doubles from 1."""
LOCK = ".lock"
SUFFIXES = {".bin", ".idx", ".mask.bin", ".mask.idx"}
GB = 10**9
_URL = re.compile(r"^([a-z][a-z0-9+]+):/+(.+)$")
_TIMEOUTS: dict[str, Any] = {"s3": {"config_kwargs": {"connect_timeout": 15, "read_timeout": 60}}}
FINAL = (FileNotFoundError, PermissionError, ValueError, TypeError, AttributeError, LookupError, NotImplementedError)
"""Errors that trying again does not mend."""


def url_of(folder: Path) -> str | None:
    """Returns the URL that was given as a path (`Path` writes s3://x as s3:/x), or None for a local folder."""
    found = _URL.match(str(folder))
    return f"{found[1]}://{found[2]}" if found else None


class Missing(ConfigError):
    """A remote folder has no manifest."""


class RemoteFolder:
    """A folder of shards behind a URL; opening it fetches manifest and tokenizer.

    Attributes:
        url: without a slash at its end. local: the folder of the local copies.

    Raises:
        Missing: it has no manifest.
        ConfigError: it cannot be read.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        protocol = url.split(":")[0]
        try:
            from fsspec.core import url_to_fs

            options = _TIMEOUTS.get(protocol, {})
            if protocol in ("http", "https"):
                from aiohttp import ClientTimeout

                options = {"client_kwargs": {"timeout": ClientTimeout(sock_connect=15, sock_read=60)}}
            self._files, self._path = url_to_fs(url, **options)
        except ImportError as error:
            raise ConfigError(
                f"data: {url} needs a package that is not installed ({error}); pip install 'electra-sampler[remote]'"
            ) from None
        except ValueError as error:
            raise ConfigError(
                f"data: {url} cannot be read ({error}); use s3:// or https://, or a local folder"
            ) from None
        content = self._read(MANIFEST_NAME, patience=OPENING_PATIENCE)
        self.local = cache_folder() / hashlib.sha256(content).hexdigest()[:16]
        try:
            make_folder(self.local / TOKENIZER_NAME)
        except OSError as error:
            raise ConfigError(
                f"data: {self.local} cannot be made ({error.strerror}); set XDG_CACHE_HOME to a writable folder"
            ) from None
        with Lock(self.local / LOCK, patience=inf):
            write_if_other(self.local / MANIFEST_NAME, content)
            manifest = load_manifest(self.local)
            self._require_plain_names(manifest)
            for name, digest in manifest.tokenizer_files.items():
                path = self.local / TOKENIZER_NAME / name
                if not path.is_file() or file_sha256(path) != digest:
                    write_atomically(path, self._read(f"{TOKENIZER_NAME}/{name}", patience=OPENING_PATIENCE))

    def _require_plain_names(self, manifest: Manifest) -> None:
        """Refuses a manifest that names files elsewhere, or no tokenizer files, as format 1 does."""
        suffixes = {suffix for shard in manifest.shards for suffix in shard.written}
        names = manifest.tokenizer_files
        if not names or any(Path(name).name != name for name in names) or not suffixes <= SUFFIXES:
            raise ConfigError(
                f"data: {self.url} names no tokenizer files, or files outside its folder; build it again in format 2"
            )

    def fetch(self, name: str, size: int, digest: str) -> None:
        """Fetches a file of a shard in blocks; a copy that differs from its sha256 is fetched once more.

        Raises:
            LocalProblem: the file is missing, forbidden or damaged, or the cache cannot be written to.
        """
        path = self.local / name
        partial = with_suffix(path, ".part")
        for _ in range(2):
            try:
                file = NewFile(partial)
                for start in range(0, size, BLOCK):
                    file.write(self._read(name, start, min(start + BLOCK, size)))
                if file.close() == (size, digest):
                    partial.replace(path)
                    return
            except OSError as error:  # of this disk: those of the network end in `_read`
                raise LocalProblem(
                    f"data: {partial} cannot be written ({error.strerror}); make room, lower --cache_gb, or set"
                    " XDG_CACHE_HOME to a folder on another disk"
                ) from None
        partial.unlink()
        raise LocalProblem(
            f"data: {self.url}/{name} was fetched twice and does not match its sha256 in manifest.json; upload it again"
        )

    def _read(self, name: str, start: int | None = None, end: int | None = None, patience: float = inf) -> bytes:
        """Reads bytes start..end-1 of a file, or all; retries what may pass for `patience` seconds, and says so once.

        Raises:
            LocalProblem: trying again does not help, or did not.
        """
        url, began, pause, problem = f"{self.url}/{name}", time.monotonic(), 1.0, ""
        while True:
            try:
                content: bytes = self._files.cat_file(f"{self._path}/{name}", start=start, end=end)
            except Exception as error:
                failed = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                status = getattr(error, "status", 0)
                if isinstance(error, FileNotFoundError):
                    kind = Missing if name == MANIFEST_NAME else LocalProblem
                    raise kind(f"data: {url} does not exist; check the name and that the upload is complete") from None
                final = isinstance(error, FINAL) or type(error).__name__ == "NoCredentialsError"
                if final or (400 <= status < 500 and status not in (408, 425, 429)):
                    raise LocalProblem(
                        f"data: {url} cannot be read ({failed}); check its name and your rights"
                    ) from None
            else:
                if start is None or end is None or len(content) == end - start:
                    if problem:
                        say(f"data: {url} is read again after {time.monotonic() - began:.0f} s")
                    return content
                if len(content) > end - start:
                    raise LocalProblem(f"data: {url}: the server ignores Range requests; use one that supports them")
                failed = f"{len(content)} bytes came, expected {end - start}"
            waited = time.monotonic() - began
            if waited + pause > patience:
                raise LocalProblem(f"data: {url} cannot be reached ({failed}); check the name and the network")
            if not problem:
                say(f"data: {url} cannot be read ({failed}); waiting for it, with retries")
            problem = failed
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


remote_folder = cache(RemoteFolder)
"""Opens each URL once per process."""


def local_folder(folder: Path) -> Path:
    """Returns the folder itself or, of a URL, the folder of its local copies.

    Raises:
        ConfigError: the URL cannot be read.
    """
    url = url_of(folder)
    return remote_folder(url).local if url else folder


def cache_folder() -> Path:
    """Returns the folder of all local copies."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "electra-sampler"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Copy(NamedTuple):
    """The local copy of a remote shard."""

    folder: RemoteFolder
    shard: ShardEntry

    def paths(self) -> Iterator[Path]:
        return (self.folder.local / (self.shard.name + suffix) for suffix in self.shard.written)

    def is_complete(self) -> bool:
        return all(path.exists() for path in self.paths())


class ShardCache:
    """The cache as one process uses it: fetches what is expected, in order, and removes what is least recently used.

    Attributes:
        limit: bytes of all copies together.
        on_wait: called every second, from any thread, while a reader waits for a shard.
    """

    def __init__(self) -> None:
        self.limit = 100 * GB
        self.on_wait: Callable[[str], None] = lambda _: None
        self._expected: Sequence[Copy] = ()
        self._urgent: list[Copy] = []
        self._changed = threading.Condition()
        self._problem: ConfigError | None = None
        self._thread: threading.Thread | None = None

    def expect(self, copies: Sequence[Copy]) -> None:
        """Sets the shards that will be read next, in the order in which they are fetched as far as there is room."""
        within, total = [], 0
        for copy in copies:
            if (total := total + copy.shard.size) > self.limit:
                break
            within.append(copy)
        with self._changed:
            self._expected = within
            self._wake()

    def require(self, copy: Copy) -> None:
        """Returns once a shard is in the cache, and marks it as used.

        Raises:
            LocalProblem: it cannot be fetched.
        """
        with self._changed:
            if not copy.is_complete():
                self._urgent.append(copy)
                self._wake()
                while not copy.is_complete():
                    if self._problem:
                        raise self._problem
                    self.on_wait(f"waiting for {copy.folder.url}/{copy.shard.name}")
                    self._changed.wait(1.0)
                self._urgent.remove(copy)
        for path in copy.paths():
            with suppress(FileNotFoundError):  # another run may just have removed it
                os.utime(path)

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="fetching shards")
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (missing := [one for one in (*self._urgent, *self._expected) if not one.is_complete()]):
                    self._changed.wait()
                copy = missing[0]
            try:
                for suffix, (size, digest) in copy.shard.written.items():
                    self._fetch(copy.folder, copy.shard.name + suffix, size, digest)
            except ConfigError as error:
                self._problem = error
            with self._changed:
                self._changed.notify_all()
            if self._problem:
                return

    def _fetch(self, folder: RemoteFolder, name: str, size: int, digest: str) -> None:
        """Fetches a file unless another process of this machine does."""
        while not (folder.local / name).exists():
            try:
                with Lock(folder.local.parent / LOCK, patience=1.0):
                    if not (folder.local / name).exists():
                        self._make_room(folder.local.parent, size)
                        folder.fetch(name, size, digest)
            except Held:
                continue

    def _make_room(self, cached: Path, size: int) -> None:
        """Removes the least recently used files of the cache that are not expected until `size` bytes fit."""
        kept = {path for copy in (*self._urgent, *self._expected) for path in copy.paths()}
        found = [(path.stat(), path) for path in cached.glob("*/shard-*")]
        total = size + sum(status.st_size for status, _ in found)
        for status, path in sorted(found, key=lambda file: file[0].st_mtime):
            if total <= self.limit:
                return
            if path not in kept:
                path.unlink(missing_ok=True)
                total -= status.st_size


CACHE = ShardCache()
"""The only one of this process."""
