"""Finds the input files: expands files, folders, globs and names of datasets on the Hugging Face hub."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from electra_sampler.foundation.config import ConfigError, errors_of_hub, explained
from electra_sampler.foundation.files import require_file_or_folder

HUB = "hub:"
"""Beginning of a dataset's name: `hub:OWNER/NAME[:CONFIGURATION][@REVISION]`."""
PARQUET_COPY = "refs/convert/parquet"
"""The branch into which the hub converts a dataset, those made by a script included."""
SUFFIXES = {".gz", ".bz2", ".xz", ".zst"}
# WikiExtractor names its files without a suffix; Wikipedia's dumps are called ....xml-p1p41242.bz2, BabyLM's text
# ....train.
_TEXT_SUFFIX = re.compile(r"|\.(txt|train|json|jsonl|ndjson|parquet|xml(-p\d+p\d+)?)")


@dataclass(frozen=True, slots=True)
class Source:
    """An input file; `key` is `NUMBER/PATH`: the number of the `--input` that names it, and its path below that.

    A corpus may have a million files: a path as text takes a third of the memory of a `Path`.
    """

    name: str
    key: str
    size: int  # bytes on disk
    origin: str = ""  # the input's number and name, for the accounts of the build

    @property
    def path(self) -> Path:
        """The file's path."""
        return Path(self.name)


def find_sources(inputs: Sequence[Path]) -> list[Source]:
    """Returns the files that the inputs name: files, folders (recursively, no hidden files), globs; in a fixed order.

    Files of the hub are downloaded once, into the cache of `datasets`.

    Raises:
        ConfigError: the hub cannot be reached, there is no text, a file's suffix is not a known text format, or a path
            is a pipe or device.
    """
    sources = [source for number, given in enumerate(inputs) for source in _sources_of(number, given)]
    if not any(source.size for source in sources):
        raise ConfigError(f"input: {' '.join(map(str, inputs))} has no text; give files that contain text")
    return sources


def _sources_of(number: int, given: Path) -> Iterator[Source]:
    origin = f"{number} {_as_text(given.name)}"
    try:
        files = sorted({*(_hub_files(str(given)) if str(given).startswith(HUB) else _files_of(given))})
        if not files:
            raise ConfigError(f"input: {given} names no file; give text files, folders of them, or a quoted glob")
        for relative, path in files:
            size = require_file_or_folder(Path(path), "input").st_size
            yield Source(path, f"{number}/{_as_text(relative)}", size, origin)
    except OSError as error:
        raise ConfigError(f"input: {error.filename} cannot be read ({error.strerror}); fix or remove it") from None


def _files_of(given: Path) -> Iterator[tuple[str, str]]:
    """Yields (path relative to the input, path) for every file that an input on this machine names."""
    if given.is_dir():
        root, found = given, _walk([given])
    elif given.exists():
        root, found = given.parent, iter([given])
    else:
        root, found = _matches(given)
    for path in found:
        if not _TEXT_SUFFIX.fullmatch(text_suffix(path)):
            raise ConfigError(
                f"input: {path} does not look like text: expected the suffix .txt, .json, .jsonl, .xml or .parquet, or "
                "none, and after it perhaps .gz, .bz2, .xz or .zst; move the file elsewhere, or select the right files "
                "with a quoted glob"
            )
        yield path.relative_to(root).as_posix(), str(path)


def _hub_files(given: str) -> Iterator[tuple[str, str]]:
    """Yields (address, path in the cache) for every file of a dataset's train split."""
    import datasets

    given_name, _, revision = given.removeprefix(HUB).partition("@")
    name, _, configuration = given_name.partition(":")
    fix = (
        "check the name and the network, download the files and give their folder, or, as for a script, try the hub's"
        f" own copy: {HUB}{given_name}@{PARQUET_COPY}"
    )
    kinds = (*errors_of_hub(), LookupError, RuntimeError, datasets.exceptions.DatasetsError)
    with explained(f"input: {given} cannot be downloaded from the hub", fix, kinds):
        builder = datasets.load_dataset_builder(name, configuration or None, revision=revision or None)
        addresses = list((builder.config.data_files or {})["train"])
        yield from zip(addresses, datasets.DownloadManager(dataset_name=name).download(addresses), strict=True)


def _matches(given: Path) -> tuple[Path, Iterator[Path]]:
    """Returns the folder above a glob's first wildcard, or above its last part, and the files it matches.

    Of a folder that it matches, these are all files, as if a shell had named it. Hidden files and folders do not match.
    """
    last = len(given.parts) - 1
    first = next((number for number, part in enumerate(given.parts) if any(sign in part for sign in "*?[")), last)
    root, pattern = Path(*given.parts[:first]), given.parts[first:]
    if any("**" in part and part != "**" for part in pattern):  # Python 3.13 reads it as *; older ones refuse it
        raise ConfigError(f"input: {given} is not a valid glob: ** must stand between slashes, as in folder/**/*.txt")
    matched = [
        path
        for path in root.glob(str(Path(*pattern)))
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    folders = sorted(path for path in matched if path.is_dir())
    return root, iter([*(path for path in matched if not path.is_dir()), *_walk(folders)])


def _walk(starts: Sequence[Path]) -> Iterator[Path]:
    """Yields every file below folders. Links are followed, and each real folder is read once, under its first name.

    Otherwise the walk would never end in folders that link to each other. To use a text twice, name it twice.
    """
    folders, seen = [*starts], set()
    for here in folders:
        status = here.stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(here) as found:
            entries = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
        folders += (here / entry.name for entry in entries if entry.is_dir())
        yield from (here / entry.name for entry in entries if not entry.is_dir())


def text_suffix(path: Path) -> str:
    """Returns a file's suffix before its compression suffix: .txt for a.txt.gz."""
    return (path.with_suffix("") if path.suffix in SUFFIXES else path).suffix


def _as_text(name: str) -> str:
    """Returns the name with bytes that are not UTF-8 escaped, because hashes and JSON need text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
