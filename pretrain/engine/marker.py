"""The marker of a finished checkpoint: size and checksum of each of its files, with a checksum of its own.

    {"sha256": "...", "format_version": 1, "files": {NAME: {"bytes": N, "sha256": "..."}, ...}}

The first `sha256` is of the marker's own text (`foundation/files.py`); markers of version 0.1 lack it. When a marker is
read, its content is serialized again and compared, so that damage to any bit is found.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from foundation.config import ConfigError
from foundation.files import file_sha256, sealed

MARKER = "complete.json"
FORMAT_VERSION = 1

Fingerprint = dict[str, Any]
"""Size and sha256 of a file."""


class Damaged(Exception):
    """A checkpoint differs from what was written; the message says how."""


def fingerprint(path: Path) -> Fingerprint:
    """Returns the size and sha256 of a file."""
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def marker_text(files: Mapping[str, Fingerprint]) -> bytes:
    """Returns the content of the marker of a checkpoint with these files."""
    return sealed({"format_version": FORMAT_VERSION, "files": files})


def read_marker(path: Path, names: tuple[str, ...]) -> dict[str, Fingerprint]:
    """Reads the marker of a checkpoint with files `names`; returns each file's fingerprint at the time of writing.

    Raises:
        Damaged: there is no marker, or it is not as it was written.
        ConfigError: a later version of this project wrote it.
    """
    try:
        content = path.read_bytes()
        said = json.loads(content)
        said.pop("sha256", None)
        version, files = said.get("format_version"), said.get("files")
        is_later = type(version) is int and version > FORMAT_VERSION and content == sealed(said)
        is_ours = content in (marker_text(files), json.dumps({"format_version": 1, "files": files}, indent=1).encode())
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ):  # no file, not JSON, not an object, nested too deeply
        raise Damaged(f"{path.name} is missing or unreadable") from None
    if is_later:
        raise ConfigError(
            f"{path.parent}: got a checkpoint of format version {version}, expected at most {FORMAT_VERSION};"
            " use the version of this project that wrote it, or a newer one"
        )
    if not (is_ours and _are_fingerprints(files, names)):
        raise Damaged(f"the content of {path.name} has changed")
    return files


def _are_fingerprints(files: Any, names: tuple[str, ...]) -> TypeGuard[dict[str, Fingerprint]]:
    return (
        isinstance(files, dict)
        and [*files] == [*names]
        and all(isinstance(file, dict) and [*file] == ["bytes", "sha256"] for file in files.values())
        and all(type(file["bytes"]) is int and type(file["sha256"]) is str for file in files.values())
    )
