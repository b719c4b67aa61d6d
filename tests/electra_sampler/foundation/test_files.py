"""Claims about files that are complete or absent, and about checksums stored inside files."""

import json
import os
import resource
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.files import (
    NewFile,
    flush,
    make_folder,
    new_folder,
    read_file,
    read_object,
    remove,
    require_file_or_folder,
    require_folder,
    require_own,
    sealed,
    unsealed,
    write_atomically,
    write_if_other,
)
from tests.conftest import unread


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    write_atomically(tmp_path / "file", b"new content")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"new content")]


def test_a_file_written_piece_by_piece_does_not_exist_until_closed(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "file")
    for piece in (b"some ", b"content"):
        file.write(piece)
    assert not (tmp_path / "file").exists()
    assert file.close() == (12, sha256(b"some content").hexdigest())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"some content")]


def test_a_link_is_followed_and_its_target_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").write_bytes(b"old")
    for name in ("file", "not there yet"):
        (tmp_path / name).symlink_to(Path("far") / name)
        write_atomically(tmp_path / name, b"new")
        assert (tmp_path / name).is_symlink() and (tmp_path / "far" / name).read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(2 * ["file", "not there yet"] + ["far"])


def test_a_link_in_the_place_of_the_temporary_file_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "file.tmp").symlink_to("mine")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "mine").read_bytes() == b"mine" and not (tmp_path / "file").is_symlink()


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    assert write_atomically(tmp_path / "pipe", b"content") == sha256(b"content").hexdigest()
    reader.join()
    assert received == [b"content"] and (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A character device of the test's own, with the numbers of /dev/full."""
    path = tmp_path / "full"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        path.open("wb").close()
    except PermissionError:
        pytest.skip("needs root, on a system that lets it make devices")
    return path


def test_a_device_is_written_to_and_stays_a_device(node: Path) -> None:
    node.with_name("link").symlink_to(node)
    for path in (node, node.with_name("link")):
        with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
            write_atomically(path, b"content")
        assert stat.S_ISCHR(path.stat().st_mode)


def test_a_folder_a_socket_a_circle_of_links_and_a_block_device_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    for name, target in (("a", "b"), ("b", "a")):
        (tmp_path / name).symlink_to(target)
    refused = {"folder": "Is a directory", "socket": "No such device or address", "a": "Too many levels of symbolic"}
    with suppress(PermissionError):  # only root may, where it may
        os.mknod(tmp_path / "disk", stat.S_IFBLK | 0o600, os.makedev(0, 0))
        refused["disk"] = "is a block device, expected a file; name another"
    before = {path: unread(path) for path in tmp_path.iterdir()}
    for name, why in refused.items():
        with pytest.raises((OSError, ConfigError), match=why):
            write_atomically(tmp_path / name, b"content")
    assert {path: unread(path) for path in tmp_path.iterdir()} == before


@contextmanager
def little_room() -> Iterator[None]:
    """Limits the files of this process to 4 kB, as on a full disk. No fixture: pytest's own output is a file too."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_without_room_is_named_and_leaves_the_old_one_alone(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    for size in (5000, 500_000):  # fails when flushed, and at once
        with little_room(), pytest.raises(OSError, match=f"File too large: '{tmp_path}/file'"):
            write_atomically(tmp_path / "file", bytes(size))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_a_new_folder_is_complete_or_absent_and_takes_the_place_of_an_empty_one(tmp_path: Path) -> None:
    for name in ("empty", "out.tmp", f"out.{os.getpid()}.tmp"):  # the last: of a killed process with this number
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "out.tmp" / "notes.txt").write_text("mine")
    for name in ("link", "deep/out", "out"):
        with pytest.raises(OSError, match=f"full: '{tmp_path}/{name}'"), new_folder(tmp_path / name) as folder:
            (folder / "file").touch()
            raise OSError(28, "full")
        with new_folder(tmp_path / name) as folder:
            (folder / "file").touch()
            assert not (tmp_path / name / "file").exists()
        assert [path.name for path in (tmp_path / name).iterdir()] == ["file"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "empty",
        "link",
        "deep",
        "out",
        "out.tmp",
        f"out.{os.getpid()}.tmp",
    }
    assert (tmp_path / "link").is_symlink() and (tmp_path / "out.tmp" / "notes.txt").read_text() == "mine"


def test_writing_nothing_makes_no_file(tmp_path: Path) -> None:
    assert NewFile(tmp_path / "file").close()[0] == 0
    assert not list(tmp_path.iterdir())


def test_a_file_with_the_right_content_is_not_touched(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"same")
    before = unread(tmp_path / "file")
    write_if_other(tmp_path / "file", b"same")
    assert unread(tmp_path / "file") == before
    write_if_other(tmp_path / "file", b"other")
    assert (tmp_path / "file").read_bytes() == b"other"


def test_a_seal_is_ordinary_json_and_detects_every_flipped_bit() -> None:
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
def test_truncated_or_unsealed_content_is_refused(content: bytes) -> None:
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


@pytest.mark.parametrize(("name", "found"), [("none", "does not exist"), ("", "is a folder, a pipe or a device")])
def test_what_is_no_file_is_refused_in_the_words_of_the_caller(name: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(ConfigError, match=f"input: {path} {found}; expected a text"):
        require_file_or_folder(path, "input", "a text")
    (tmp_path / "text").touch()
    assert require_file_or_folder(tmp_path / "text", "input", "a text").st_size == 0


@pytest.mark.parametrize("read", [read_file, lambda path, option: read_object(path, option, "repair it")])
def test_a_file_of_the_user_is_read_and_a_pipe_or_a_device_refused(
    read: Callable[[Path, str], object], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("{}")
    assert read(tmp_path / "file", "run") in (b"{}", {})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(ConfigError, match=f"run: {tmp_path / name} is a pipe, a socket or a device; give a file"):
            read(tmp_path / name, "run")


def test_only_what_has_the_mark_of_its_command_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    require_own(path, "<mark>")
    for content in ("", "written before: <mark>"):
        path.write_text(content)
        require_own(path, "<mark>")
    path.write_text("<p>mine</p>")
    with pytest.raises(ConfigError, match=rf"output: {path} was not written by this command.*; move it away, or name"):
        require_own(path, "<mark>")
    os.mkfifo(tmp_path / "pipe")
    require_own(tmp_path / "pipe", "<mark>")


@pytest.mark.skipif(os.access("/proc/sys", os.W_OK), reason="needs an ordinary user: root may write anywhere")
def test_a_read_only_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="output: got /proc/sys/out, but /proc/sys is not writable"):
        require_folder(Path("/proc/sys/out"))
