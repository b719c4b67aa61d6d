"""Claims about a checkpoint's marker: any flipped bit counts as damage; only a later version's marker is an error."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from foundation.config import ConfigError
from foundation.files import sealed
from pretrain.engine.checkpoint import FILES, MARKER
from pretrain.engine.marker import Damaged, fingerprint, marker_text, read_marker

Files = dict[str, dict[str, object]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Files of a checkpoint, each containing its own name."""
    for name in FILES:
        (tmp_path / name).write_text(name)
    return {name: fingerprint(tmp_path / name) for name in FILES}


def of_version_0_1(files: Files) -> bytes:
    """A marker without its own checksum, as version 0.1 wrote it."""
    return json.dumps({"format_version": 1, "files": files}, indent=1).encode()


def later(files: Files, version: object = 2, **more: object) -> bytes:
    """A marker as a later version may write it, with a valid checksum."""
    return sealed({"format_version": version, "files": files, **more})


def read(folder: Path, content: bytes) -> Files:
    (folder / MARKER).write_bytes(content)
    return read_marker(folder / MARKER, FILES)


EVERY = pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
"""Every seventh bit in the quick suite, every bit in the long one."""


def flips(content: bytes, every: int = 1) -> Iterator[bytes]:
    """Copies of the content with one bit flipped, for one bit in `every`; a step of 7 reaches all bits of a byte."""
    for place in range(0, 8 * len(content), every):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)


def test_a_marker_is_read_as_it_was_written(tmp_path: Path, files: Files) -> None:
    assert read(tmp_path, marker_text(files)) == files
    assert json.loads(marker_text(files))["files"] == files


def test_a_marker_of_version_0_1_is_read(tmp_path: Path, files: Files) -> None:
    assert read(tmp_path, of_version_0_1(files)) == files


@EVERY
@pytest.mark.parametrize("write", [marker_text, later], ids=["ours", "a later version's"])
def test_a_sealed_marker_with_any_bit_flipped_is_damaged(tmp_path: Path, files: Files, write, every: int) -> None:  # type: ignore[no-untyped-def]
    content = write(files)
    for changed in flips(content, every):
        with pytest.raises(Damaged, match=MARKER):
            read(tmp_path, changed)
    assert len(content) > 400


@EVERY
def test_a_marker_of_version_0_1_with_any_bit_flipped_is_damaged_or_fits_no_file(
    tmp_path: Path, files: Files, every: int
) -> None:
    refused = 0
    for changed in flips(of_version_0_1(files), every):
        try:
            assert read(tmp_path, changed) != files
        except Damaged:
            refused += 1
    assert refused > 1500 / every


def test_a_later_versions_marker_is_an_error_that_names_both_versions(tmp_path: Path, files: Files) -> None:
    said = rf"{tmp_path}: got a checkpoint of format version 7, expected at most 1; use the version of this"
    for more in ({}, {"shards": [{"nested": None}]}):
        with pytest.raises(ConfigError, match=said):
            read(tmp_path, later(files, 7, **more))


@pytest.mark.parametrize("version", [0, -1, True, 1.0, 2.0, "2", None, [2], {}])
def test_an_impossible_version_is_damage_even_with_a_valid_checksum(
    tmp_path: Path, files: Files, version: object
) -> None:
    with pytest.raises(Damaged):
        read(tmp_path, later(files, version))


def test_a_later_version_without_checksum_is_damage(tmp_path: Path, files: Files) -> None:
    with pytest.raises(Damaged):
        read(tmp_path, of_version_0_1(files).replace(b'"format_version": 1', b'"format_version": 2'))


MALFORMED = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"1",
    "a string": b'"format_version"',
    "nested without end": b"[" * 100_000,
    "nested without end in an object": b'{"files":' * 100_000,
    "a huge number": b'{"format_version": ' + b"9" * 10_000 + b"}",
    "a number out of range": b'{"format_version": 1e999, "files": {}}',
    "not a number": b'{"format_version": NaN, "files": {}}',
    "no files": b'{\n "format_version": 1,\n "files": null\n}',
    "an empty object": b"{}",
    "not text": bytes(range(256)),
    "UTF-16": json.dumps({"format_version": 1, "files": {}}).encode("utf-16"),
    "zeros": bytes(500),
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_any_other_content_is_damage(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(Damaged, match=MARKER):
        read(tmp_path, content)


@pytest.mark.parametrize(
    "entry", [None, [], 3, {}, {"bytes": 3}, {"bytes": "3", "sha256": "0" * 64}, {"bytes": 3, "sha256": None}]
)
def test_a_wrong_entry_for_a_file_is_damage_with_or_without_checksum(
    tmp_path: Path, files: Files, entry: object
) -> None:
    wrong = {**files, FILES[1]: entry}
    for write in (marker_text, of_version_0_1):
        with pytest.raises(Damaged):
            read(tmp_path, write(wrong))  # type: ignore[operator]


def test_another_set_of_files_is_damage(tmp_path: Path, files: Files) -> None:
    fewer = {name: files[name] for name in FILES[:2]}
    more = {**files, "../weights.safetensors": files[FILES[0]]}
    for wrong in (fewer, more, dict(reversed(files.items()))):
        with pytest.raises(Damaged):
            read(tmp_path, marker_text(wrong))


def test_a_duplicate_key_is_damage(tmp_path: Path, files: Files) -> None:
    for content in (marker_text(files), of_version_0_1(files)):
        with pytest.raises(Damaged):
            read(tmp_path, content.replace(b'"format_version": 1,', b'"format_version": 2,\n "format_version": 1,'))


def test_a_missing_marker_or_one_that_is_not_a_file_is_damage(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(Damaged, match=f"{MARKER} is missing or unreadable"):
            read_marker(tmp_path / MARKER, FILES)
        (tmp_path / MARKER).mkdir(exist_ok=True)
