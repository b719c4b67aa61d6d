"""Claims about the files selected by an input."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.sources import find_sources
from electra_sampler.foundation.config import ConfigError


def make(folder: Path, *names: str) -> None:
    """Writes a text of each of these names, which may lie in folders."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("a")


def test_files_folders_and_globs_may_be_mixed_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, "0.txt", "x/1.txt", "x/.hidden.txt", "x/y/2.txt", "z/3.txt", "z/4")
    given = [tmp_path / "x", tmp_path / "z" / "3.txt", tmp_path / "*" / "4", tmp_path / "x" / "*", tmp_path / "**"]
    assert [source.key for source in find_sources(given)] == [
        *("0/1.txt", "0/y/2.txt", "1/3.txt", "2/z/4", "3/1.txt", "3/y/2.txt"),
        *("4/0.txt", "4/x/1.txt", "4/x/y/2.txt", "4/z/3.txt", "4/z/4"),
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.pdf", b"text"), ("a.doc.bz2", b"text"), ("a.txt", b"")],
)
def test_input_that_is_not_text_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=name if content else "no text"):
        find_sources([tmp_path])


@pytest.mark.parametrize(
    "name",
    ["wiki_00", "a.txt.zst", "a.json", "a.jsonl.gz", "train-00000-of-00041.parquet", "enwiki-1.xml-p1p41242.bz2"],
)
def test_usual_names_of_corpus_files_are_accepted(tmp_path: Path, name: str) -> None:
    make(tmp_path, name)
    assert [source.path.name for source in find_sources([tmp_path])] == [name]


EACH_OTHER = {f"raw/{one}/link-{n}": f"raw/{other}" for one, other in ("ab", "ba") for n in range(4)}


@pytest.mark.parametrize(
    ("files", "links", "given", "keys"),
    [
        (
            ["corpus/sub/a.txt"],
            {"corpus/sub/back": "corpus", "raw/linked": "corpus"},
            "raw",
            ["0/linked/sub/a.txt"],
        ),
        (["data/deep/a.txt"], {".cache/link": "data/deep"}, ".", ["0/data/deep/a.txt"]),
        # along every path there would be some 10^24 folders before the system's limit of 40 links
        (["raw/a/t.txt", "raw/b/t.txt"], EACH_OTHER, "raw", ["0/a/t.txt", "0/b/t.txt"]),
        (["raw/a/t.txt", "raw/b/t.txt"], EACH_OTHER, "raw/a", ["0/link-0/t.txt", "0/t.txt"]),
        (["raw/a/t.txt", "raw/b/t.txt"], EACH_OTHER, "raw/*", ["0/a/t.txt", "0/b/t.txt"]),
        (["data/deep/a.txt"], {".cache/link": "data/deep"}, "*", ["0/data/deep/a.txt"]),
    ],
    ids=[
        *("a link back", "a link from a hidden folder", "many links to each other", "the same from one of them"),
        *("the same from a glob", "a hidden folder that a glob might match"),
    ],
)
def test_links_are_followed_and_each_folder_is_read_once(
    files: list[str], links: dict[str, str], given: str, keys: list[str], tmp_path: Path
) -> None:
    make(tmp_path, *files)
    for name, target in links.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tmp_path / target)
    assert [source.key for source in find_sources([tmp_path / given])] == keys


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (".", r"b\.txt cannot be read \(No such file"),
        ("nowhere", r"input: /.*/nowhere names no file"),
        ("**.txt", r"input: .*/\*\*\.txt is not a valid glob: .* must stand between slashes, as in"),
    ],
)
def test_a_broken_link_a_missing_path_and_a_glob_that_pythons_read_differently_are_refused_by_name(
    given: str, said: str, tmp_path: Path
) -> None:
    make(tmp_path, "a.txt")
    (tmp_path / "b.txt").symlink_to(tmp_path / "missing")
    with pytest.raises(ConfigError, match=said):
        find_sources([tmp_path / given])


def test_a_source_records_its_input(tmp_path: Path) -> None:
    make(tmp_path, "wiki/a.txt", "books/a.txt")
    sources = find_sources([tmp_path / "wiki", tmp_path / "books"])
    assert [source.origin for source in sources] == ["0 wiki", "1 books"]


def test_an_input_given_twice_is_read_twice(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    assert [source.key for source in find_sources([tmp_path, tmp_path])] == ["0/a.txt", "1/a.txt"]


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.timeout(20)  # reading the pipe or the device would never end
@pytest.mark.parametrize("special", [os.mkfifo, make_socket, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("given", ["", "b.txt", "*.txt"])
def test_special_files_are_refused_by_name_and_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, special: Callable[[Path], None], given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path, "a.txt")
    special(Path("b.txt"))
    with pytest.raises(ConfigError, match=r"b\.txt is a pipe, a socket or a device"):
        find_sources([Path(given)])


def test_a_name_that_is_not_utf8_has_a_key_that_is(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    make(folder, os.fsdecode(b"\xff.txt"))
    [source] = find_sources([folder])
    assert (source.key, source.origin) == (r"0/\xff.txt", r"0 caf\xe9")
    assert source.path.read_text() == "a"


def test_a_dataset_of_the_hub_is_its_files_of_the_train_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local folder replaces the hub: `datasets` accepts both."""
    for library in ("huggingface_hub.constants", "datasets.config"):  # these read the environment on import
        monkeypatch.setattr(f"{library}.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    for part in range(3):
        (tmp_path / "corpus" / f"train-{part:05d}-of-00003.jsonl").write_text('{"text": "Ka lo."}\n')
    (tmp_path / "corpus" / "test-00000-of-00001.jsonl").write_text('{"text": "Mi ne."}\n')
    sources = find_sources([Path("hub:corpus")])
    assert [source.path.name for source in sources] == [f"train-{part:05d}-of-00003.jsonl" for part in range(3)]
    assert {source.origin for source in sources} == {"0 hub:corpus"}
    with pytest.raises(ConfigError, match=r"hub:no/such cannot be downloaded.*network"):
        find_sources([Path("hub:no/such")])
    Path("script").mkdir()
    Path("script/script.py").write_text("import datasets\n")
    with pytest.raises(ConfigError, match=r"hub:script .*no longer supported.*hub:script@refs/convert/parquet$"):
        find_sources([Path("hub:script")])
