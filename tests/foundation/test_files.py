"""Claims about files that are complete or absent, and about checksums stored inside files."""

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from foundation.config import ConfigError
from foundation.files import (
    NewFile,
    flush,
    make_folder,
    remove,
    require_folder,
    sealed,
    unsealed,
    write_atomically,
    write_if_other,
)


def test_a_file_is_replaced_as_a_whole(tmp_path):
    write_atomically(tmp_path / "file", b"old")
    write_atomically(tmp_path / "file", b"new content")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new content"


def test_a_file_written_piece_by_piece_does_not_exist_until_closed(tmp_path):
    file = NewFile(tmp_path / "file")
    for piece in (b"some ", b"content"):
        file.write(piece)
    assert not (tmp_path / "file").exists()
    assert file.close() == (12, sha256(b"some content").hexdigest())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"some content"


def test_writing_nothing_makes_no_file(tmp_path):
    assert NewFile(tmp_path / "file").close()[0] == 0
    assert not list(tmp_path.iterdir())


def test_a_file_with_the_right_content_is_not_touched(tmp_path):
    write_atomically(tmp_path / "file", b"same")
    before = (tmp_path / "file").stat()
    write_if_other(tmp_path / "file", b"same")
    assert (tmp_path / "file").stat() == before
    write_if_other(tmp_path / "file", b"other")
    assert (tmp_path / "file").read_bytes() == b"other"


def test_a_seal_is_ordinary_json_and_detects_every_flipped_bit():
    content = sealed({"name": "shard", "sizes": [1, 2, 3]})
    assert json.loads(content)["sizes"] == [1, 2, 3]
    assert json.loads(unsealed(content)) == {"name": "shard", "sizes": [1, 2, 3]}
    assert json.loads(unsealed(sealed({}))) == {}
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="checksum"):
            unsealed(bytes(flipped))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", sealed({})[:-1], sealed({}) + b" "])
def test_truncated_or_unsealed_content_is_refused(content):
    with pytest.raises(ValueError, match="checksum"):
        unsealed(content)


def test_removing_a_link_removes_the_link_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "far" / "deep" / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "far")
    (tmp_path / "link").symlink_to(tmp_path / "far")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    for name in ("folder", "link", "dangling", "file", "not there"):
        remove(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["far"]
    assert (tmp_path / "far" / "deep" / "file").read_text() == "kept"


def test_a_folder_is_made_with_its_parents_and_each_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed, real = [], os.fsync

    def told(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", told)
    make_folder(tmp_path / "a" / "b")
    assert flushed == [str(tmp_path), str(tmp_path / "a")]
    make_folder(tmp_path / "a" / "b")
    assert len(flushed) == 2
    flush(tmp_path / "a" / "b")
    assert flushed[-1] == str(tmp_path / "a" / "b")


def test_a_broken_link_is_not_a_folder_and_no_folder_is_made_behind_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk that is not mounted")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "link" / "checkpoints")


def test_a_path_that_cannot_be_a_folder_is_refused_and_a_possible_one_is_not_created_yet(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for output in ("file", "file/deep/er", "dangling"):
        with pytest.raises(
            ConfigError, match=r"output: got .*, expected a folder, but .* is not a folder; name another"
        ):
            require_folder(tmp_path / output)
    require_folder(tmp_path / "new" / "folder")
    require_folder(tmp_path)
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.access("/proc/sys", os.W_OK), reason="here root may write anywhere")
def test_a_read_only_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="output: got /proc/sys/out, but /proc/sys is not writable"):
        require_folder(Path("/proc/sys/out"))
