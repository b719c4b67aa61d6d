"""Shards behind a URL: whole shards fetched ahead of need into a bounded cache that all ranks of a machine share.

    CACHE/HASH/manifest.json, tokenizer/    one folder per remote folder; HASH is the sha256 of its manifest
    CACHE/HASH/shard-00000.bin ...          fetched shards, each file under its name only once its sha256 matches

CACHE is `$XDG_CACHE_HOME/electra-sampler`, by default in `~/.cache`. Each process has one thread that fetches; a lock
lets one of them at a time fetch, and the others find its files. A lost connection is retried forever during training.
"""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from data_prep.manifest import MANIFEST_NAME, ShardEntry, load_manifest
from data_prep.tokens import TOKENIZER_NAME
from electra_sampler.foundation.config import URL, ConfigError, LocalProblem, explained, without_secrets
from electra_sampler.foundation.files import (
    NewFile,
    file_sha256,
    with_suffix,
    write_atomically,
    write_if_other,
)
from electra_sampler.foundation.locks import Held, Lock, holder
from electra_sampler.foundation.progress import SILENCE, waited_for

BLOCK = 8 << 20
"""Bytes per request: a lost connection costs at most this."""
SLOWEST = 600.0
"""Seconds after which a block counts as lost; below 14 kB/s, a shard of 1 GB would take most of a day."""
PATIENCE = 20.0
"""Seconds of retries where a user's mistake is likelier than an outage: at opening, or if an answer's size is wrong."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""First and longest pause between two attempts, in seconds; the pause doubles each time."""
LOCK = ".lock"
GB = 10**9
FINAL = (FileNotFoundError, PermissionError, ValueError, TypeError, AttributeError, LookupError, NotImplementedError)
"""Errors that a retry cannot fix."""
_secrets: dict[str, tuple[str, str]] = {}
"""Login and query of each URL that has them, kept only in memory, since they may be secret."""


def url_of(folder: Path) -> str | None:
    """Returns the URL of a folder (`Path` writes s3://x as s3:/x), or None for a local folder.

    Login and query are removed from the URL and kept in `_secrets`, for `RemoteFolder`.
    """
    if not (found := URL.match(str(folder))):
        return None
    place, _, query = str(folder)[found.end() :].partition("?")
    url = f"{found[1].rstrip('/')}//{place}"
    if found[2] or query:
        _secrets[url] = quote((found[2] or "")[:-1], safe=":%"), query and f"?{query}"
    return url


class Missing(ConfigError):
    """Raised if a remote folder has no manifest."""


class RemoteFolder:
    """A folder of shards behind a URL; opening it fetches manifest and tokenizer.

    Attributes:
        url: without a slash at its end. local: the folder of the local copies.

    Raises:
        Missing: it has no manifest.
        ConfigError: it cannot be read.
    """

    def __init__(self, url: str) -> None:
        self.url, (protocol, place) = url, url.split("://")
        of_parents = (secret for known, secret in _secrets.items() if f"{url}/".startswith(f"{known}/"))
        login, self._query = next(of_parents, ("", ""))
        options: dict[str, Any] = {}
        if protocol == "s3":
            key, _, secret = map(unquote, login.partition(":"))
            timeouts = {"connect_timeout": 15, "read_timeout": 60}
            login, options = "", {"key": key or None, "secret": secret or None, "config_kwargs": timeouts}
        with explained(
            f"data: {url} cannot be read",
            "use s3:// or https:// and pip install 'electra-sampler[remote]', or a local folder",
            (ImportError, ValueError),
        ):
            from aiohttp import ClientTimeout
            from fsspec.core import url_to_fs

            if protocol in ("http", "https"):
                options["client_kwargs"] = {"timeout": ClientTimeout(sock_connect=15, sock_read=60)}
            self._files, self._path = url_to_fs(f"{protocol}://{login}{'@' if login else ''}{place}", **options)
        content = self._read(MANIFEST_NAME, patience=PATIENCE)
        self.local = cache_folder() / hashlib.sha256(content).hexdigest()[:16]
        lock = self.local / LOCK
        with waited_for(lambda: holder(lock) or str(lock), lambda: Lock(lock, patience=inf)):
            write_if_other(self.local / MANIFEST_NAME, content)
            for name, digest in load_manifest(self.local).tokenizer_files.items():
                path = self.local / TOKENIZER_NAME / name
                if not path.is_file() or file_sha256(path) != digest:
                    write_atomically(path, self._read(f"{TOKENIZER_NAME}/{name}", patience=PATIENCE))

    def fetch(self, name: str, size: int, digest: str) -> None:
        """Fetches a file of a shard in blocks; a copy that differs from its sha256 is fetched once more.

        Raises:
            LocalProblem: the file is missing, forbidden or damaged, or the cache cannot be written to.
        """
        path = self.local / name
        partial = with_suffix(path, ".part")
        for _ in range(2):
            with explained(
                f"data: {partial} cannot be written",
                "make room, lower --cache_gb, or set XDG_CACHE_HOME to a folder on another disk",
                OSError,  # of this disk: `_read` handles errors of the network
                LocalProblem,
            ):
                file = NewFile(partial)
                for start in range(0, size, BLOCK):
                    file.write(self._read(name, range(start, min(start + BLOCK, size))))
                if file.close() == (size, digest):
                    partial.replace(path)
                    return
        partial.unlink()
        raise LocalProblem(
            f"data: {self.url}/{name} was fetched twice and does not match its sha256 in manifest.json; upload it again"
        )

    def _read(self, name: str, block: range | None = None, patience: float = inf) -> bytes:
        """Reads a block of a file, or all of it; retries transient errors for `patience` seconds and logs the first.

        Raises:
            LocalProblem: a retry cannot fix the error, or the retries failed.
        """
        url, expected = f"{self.url}/{name}", f"bytes {block.start} to {block.stop - 1}" if block else "the file"
        limit = SLOWEST if block else 3 * PATIENCE
        options: dict[str, Any] = {"start": block.start, "end": block.stop} if block else {}
        if self._files.async_impl:  # as http, s3 and gs are
            options["timeout"] = limit
        pause, began = FIRST_PAUSE, time.monotonic()
        deadline = began + patience
        while True:
            try:
                content: bytes = self._files.cat_file(f"{self._path}/{name}{self._query}", **options)
                if len(content) == len(block or content) > 0:
                    return content
                came, final = f"{len(content)} bytes", len(content) > len(block or content)
                deadline = min(deadline, time.monotonic() + PATIENCE)
            except FileNotFoundError:
                missing = Missing if name == MANIFEST_NAME else LocalProblem
                raise missing(f"data: {url} does not exist; check the name and that the upload is complete") from None
            except Exception as error:
                came = without_secrets(" ".join(str(error).split()))[:200] or f"took more than {limit:g} s"
                came, final, deadline = f"{type(error).__name__}: {came}", _is_final(error), began + patience
            if final or time.monotonic() + pause > deadline:
                raise LocalProblem(
                    f"data: {url} cannot be read: got {came}, expected {expected}; check its name, its upload, the"
                    " network, your rights, and that the server supports Range requests"
                )
            if pause == FIRST_PAUSE:
                say(f"data: {url} cannot be read ({came}); waiting for it, with retries")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _is_final(error: Exception) -> bool:
    """True for an error that a retry cannot fix."""
    kind, status = type(error).__name__, getattr(error, "status", 0)
    refused = 300 <= status < 500 and status not in (408, 425, 429)
    return isinstance(error, FINAL) or kind == "NoCredentialsError" or "Redirect" in kind or refused


remote_folder = cache(RemoteFolder)
"""Opens each URL once per process."""


def local_folder(folder: Path) -> Path:
    """Returns a local folder unchanged; for a URL, the folder of its local copies.

    Raises:
        ConfigError: the URL cannot be read.
    """
    url = url_of(folder)
    return waited_for(lambda: url, lambda: remote_folder(url)).local if url else folder


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
        """True if all its files exist with the expected sizes."""
        with suppress(FileNotFoundError):
            files = zip(self.paths(), self.shard.written.values(), strict=True)
            return all(path.stat().st_size == size for path, (size, _) in files)
        return False


class ShardCache:
    """One process's view of the cache: fetches expected shards in order and removes the least recently used ones.

    Attributes:
        limit: maximum bytes of all copies together.
        on_wait: called every second, from any thread, while a reader waits for a shard.
    """

    def __init__(self) -> None:
        self.limit = 100 * GB
        self.on_wait: Callable[[str], None] = lambda _: None
        self._expected: Sequence[Copy] = ()
        self._urgent: list[Copy] = []
        self._verified: set[Path] = set()
        self._changed = threading.Condition()
        self._problem: Exception | None = None
        self._thread: threading.Thread | None = None

    def expect(self, copies: Sequence[Copy]) -> None:
        """Sets the shards that will be read next, in order; they are fetched in this order while there is room."""
        totals = accumulate(copy.shard.size for copy in copies)
        with self._changed:
            self._expected = [copy for copy, total in zip(copies, totals, strict=True) if total <= self.limit]
            self._wake()

    def require(self, copy: Copy) -> None:
        """Returns once a shard is in the cache and verified, and marks it as used.

        Raises:
            Exception: the error that ended the fetching thread, usually a `LocalProblem`.
        """
        what, word_at = f"{copy.folder.url}/{copy.shard.name}", time.monotonic() + SILENCE
        with self._changed:
            if not self._is_ready(copy):
                self._urgent.append(copy)
                self._wake()
                while not self._is_ready(copy):
                    if self._problem:
                        raise self._problem
                    if time.monotonic() > word_at and os.environ.get("LOCAL_RANK", "0") == "0":
                        say(f"data: waiting for {what} ({copy.shard.size / 1e6:.1f} MB) for more than {SILENCE:.0f} s")
                        word_at = inf
                    self.on_wait(f"waiting for {what}")
                    self._changed.wait(1.0)
                self._urgent.remove(copy)
        for path in copy.paths():
            with suppress(FileNotFoundError):  # another run may just have removed it
                os.utime(path)

    def _is_ready(self, copy: Copy) -> bool:
        return copy.is_complete() and self._verified.issuperset(copy.paths())

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="fetching shards")
            self._thread.start()

    def _work(self) -> None:
        """Fetches shards until any failure, which the next reader raises."""
        try:
            while True:
                with self._changed:
                    self._changed.notify_all()
                    while not (missing := [one for one in (*self._urgent, *self._expected) if not self._is_ready(one)]):
                        self._changed.wait()
                for suffix, (size, digest) in missing[0].shard.written.items():
                    self._fetch(missing[0].folder, missing[0].shard.name + suffix, size, digest)
        except Exception as error:
            self._problem = error

    def _fetch(self, folder: RemoteFolder, name: str, size: int, digest: str) -> None:
        """Returns once a file's copy is verified; fetches it first unless another process of this machine does."""
        path, cached = folder.local / name, folder.local.parent
        while not self._is_sound(path, size, digest):
            with suppress(Held), Lock(cached / LOCK, patience=1.0):
                if not self._is_sound(path, size, digest):
                    if path.exists():
                        say(f"data: {path} differs from its manifest.json; it is removed and fetched again")
                        path.unlink()
                    self._make_room(cached, size)
                    folder.fetch(name, size, digest)
                    self._verified.add(path)

    def _is_sound(self, path: Path, size: int, digest: str) -> bool:
        """True if a copy has the expected size and sha256; a sound copy's sha256 is computed once per process."""
        with suppress(FileNotFoundError):
            if path.stat().st_size == size and (path in self._verified or file_sha256(path) == digest):
                self._verified.add(path)
                return True
        return False

    def _make_room(self, cached: Path, size: int) -> None:
        """Removes unexpected files from the cache, the least recently used first, until `size` more bytes fit."""
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
"""The cache of this process."""
