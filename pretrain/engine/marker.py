"""The marker of a finished checkpoint: what its files were when it was written, under a checksum of its own.

    {"sha256": "...", "format_version": 1, "files": {NAME: {"bytes": N, "sha256": "..."}, ...}}

The first is of the marker's own text (`foundation/files.py`). Markers of version 0.1 lack it: what one of them says is
written out again and compared, so that damage to any bit of it shows all the same.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from foundation.config import ConfigError
from foundation.files import file_sha256, sealed, unsealed

MARKER = "complete.json"
FORMAT_VERSION = 1
_DIGEST = re.compile("[0-9a-f]{64}")

Fingerprint = dict[str, Any]
"""Size and sha256 of a file."""


class Damaged(Exception):
    """A checkpoint is not as it was written; says in which way."""


def fingerprint(path: Path) -> Fingerprint:
    """What a file is known by."""
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def marker_text(files: Mapping[str, Fingerprint]) -> bytes:
    """The marker of a checkpoint of these files."""
    return sealed({"format_version": FORMAT_VERSION, "files": files})


def read_marker(path: Path, names: tuple[str, ...]) -> dict[str, Fingerprint]:
    """What the files of a checkpoint, which has these, were when it was written.

    Raises:
        Damaged: there is no marker, or it is not what was written.
        ConfigError: it is what a later version has written.
    """
    try:
        content = path.read_bytes()
        said, is_sealed = _parse(content)
    except (OSError, ValueError, AttributeError, RecursionError):  # gone, no JSON, no object, nested without end
        raise Damaged(f"{path.name} is missing or unreadable") from None
    version = said.get("format_version")
    if is_sealed and type(version) is int and version > FORMAT_VERSION:
        raise ConfigError(
            f"{path.parent}: got a checkpoint of format version {version}, expected at most {FORMAT_VERSION};"
            " use the version of this project that wrote it, or a later one"
        )
    files = said.get("files")
    known = type(version) is int and version == FORMAT_VERSION and [*said] == ["format_version", "files"]
    if not known or not _are_fingerprints(files, names):
        raise Damaged(f"the content of {path.name} has changed")
    return files


def _are_fingerprints(files: Any, names: tuple[str, ...]) -> TypeGuard[dict[str, Fingerprint]]:
    return (
        isinstance(files, dict)
        and [*files] == [*names]
        and all(isinstance(file, dict) and [*file] == ["bytes", "sha256"] for file in files.values())
        and all(type(file["bytes"]) is int for file in files.values())
        and all(isinstance(file["sha256"], str) and _DIGEST.fullmatch(file["sha256"]) for file in files.values())
    )


def _parse(content: bytes) -> tuple[dict[str, Any], bool]:
    """What the marker says, and whether it carries its own checksum.

    Raises:
        ValueError, AttributeError, RecursionError: it is no marker that was ever written.
    """
    with suppress(ValueError):
        return dict(json.loads(unsealed(content)).items()), True
    values = dict(json.loads(content).items())
    if content != json.dumps(values, indent=1).encode():
        raise ValueError("not as version 0.1 wrote it")
    return values, False
