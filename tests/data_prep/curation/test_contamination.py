"""Claims about n-grams shared with evaluation sets, and about reading the sets."""

import json
import os
import unicodedata
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.curation.contamination import Contamination, Match, make_index, read_sets
from electra_sampler.foundation.config import ConfigError

TEXTS = (
    "It 's a charming - and often affecting - journey.",
    "one two three one two three four",
    "six",
    "Été noir, été blanc",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sets") / "set.tsv"
    path.write_text("\n".join(TEXTS), "utf-8")
    return path


def find(path: Path, n: int, text: str) -> Match | None:
    folder = path.parent / f"{n}"
    if not folder.exists():
        folder.mkdir()
        make_index([str(path)], n).save(folder)
    return Contamination(folder).find(text)


def named(number: int, ngram: str) -> Match:
    return Match("set.tsv", f"set.tsv#{number}", ngram)


@pytest.mark.parametrize(
    ("n", "text", "match"),
    [
        pytest.param(6, "He: IT'S A CHARMING, and (often) more.", named(1, "it s a charming and often"), id="case"),
        pytest.param(4, "x ÉTÉ NOIR — été_blanc!", named(4, "été noir été blanc"), id="punctuation"),
        pytest.param(4, "x ÉTÉ NOIR — étéblanc", None, id="a word is whole"),
        pytest.param(3, "affecting journey one", None, id="not from one text into the next"),
        pytest.param(3, "four six été", None, id="nor over a short one"),
        pytest.param(1, "SIX", named(3, "six"), id="a whole text"),
        pytest.param(3, "was two three one two three four", named(2, "two three one"), id="the document's first"),
        pytest.param(3, "a one two three x", named(2, "one two three"), id="the sets' first"),
    ],
)
def test_words_that_a_text_of_a_set_has_in_this_order_are_found_whatever_their_case_and_punctuation(
    path: Path, n: int, text: str, match: Match | None
) -> None:
    assert find(path, n, text) == match


def test_composed_and_decomposed_letters_are_equal(path: Path, tmp_path: Path) -> None:
    (tmp_path / "d.tsv").write_text(unicodedata.normalize("NFD", TEXTS[3]), "utf-8")
    assert find(tmp_path / "d.tsv", 4, TEXTS[3]) == ("d.tsv", "d.tsv#1", "été noir été blanc")


def test_words_of_indic_scripts_are_whole_and_letters_of_scripts_without_spaces_are_words(tmp_path: Path) -> None:
    (tmp_path / "h.tsv").write_text("छोटी दिल्ली नदी के किनारे\n吾輩は猫である", "utf-8")
    assert find(tmp_path / "h.tsv", 3, "वह दिल्ली नदी तक गया") is None, "two words of five pieces"
    assert find(tmp_path / "h.tsv", 3, "छाटे दिल्ली नादे") is None, "other vowels"
    assert find(tmp_path / "h.tsv", 3, "यह दिल्ली नदी के") == ("h.tsv", "h.tsv#1", "दिल्ली नदी के")
    assert find(tmp_path / "h.tsv", 6, "その吾輩は猫であり") == ("h.tsv", "h.tsv#2", "吾 輩 は 猫 で あ")


@settings(max_examples=200)
@given(st.lists(st.sampled_from(("one", "two", "three", "four", "five")), max_size=30), st.integers(1, 4))
def test_matches_are_those_of_plain_comparison(path: Path, words: list[str], n: int) -> None:
    known = [unicodedata.normalize("NFC", text).lower().replace("'", " ").split() for text in TEXTS[1:3]]
    ngrams = {tuple(text[place : place + n]) for text in known for place in range(len(text) - n + 1)}
    own = [tuple(words[place : place + n]) for place in range(len(words) - n + 1)]
    expected = next((ngram for ngram in own if ngram in ngrams), None)
    found = find(path, n, " ".join(words))
    assert (tuple(found.ngram.split()) if found else None) == expected


def test_short_texts_are_counted(path: Path) -> None:
    index = make_index([str(path)], 5)
    assert (index.texts, index.short) == (4, 2)


def test_texts_that_are_all_too_short_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"decontaminate_ngram: got 13, but no text of .*set\.tsv has so many words"):
        make_index([str(path)], 13)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = '\ufeffid\ttext\tother text\n1\tone "quoted\ttwo\n2\tthree\n3\t\tfour\n'
    bare = "a\t1\tone\r\nb\t0\ttwo\u2028\x0ctoo\r\n"
    files = {
        **{"rows.tsv": rows, "bare.tsv": bare, "elsewhere/rows.tsv": rows, "elsewhere/bare.tsv": bare},
        "lines.jsonl": '{"a": "one", "b": {"c": ["two", {"a": "three"}]}, "n": 4}\n\n{"a": null, "c": "five"}\n',
        "tree.json": json.dumps([{"title": "x", "paragraphs": [{"context": "one", "qas": [{"question": "?"}]}]}]),
        "glue/CoLA/dev.tsv": "gj04\t1\t\tOne sailor.\ngj04\t0\t*\tTwo sailor.\n",
        "glue/CoLA/train.tsv": "gj04\t1\t\tTrained on.\n",
        "glue/CoLA/test.tsv": "index\tsentence\n0\tThree sailors.\n",
        "glue/MNLI/dev_matched.tsv": "index\tsentence1_parse\tsentence1\tsentence2\n0\t(a)\tFour.\tFive.\n",
        "glue/MRPC/dev.tsv": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tSix.\tSeven.\n",
        "squad/dev-v1.1.json": json.dumps({"data": [{"qas": [{"question": "Q", "id": "i"}], "context": "C"}]}),
        "squad/train-v1.1.json": "{}",
        "pairs/b.jsonl": '{"sentence_good": "B.", "sentence_bad": "Bad.", "UID": "b"}\n',
        "pairs/a.jsonl": '{"sentence_good": "A.", "sentence_bad": "Worse."}\n',
        **{"bad.json": "{", "bad.jsonl": "{}\n{", "broken.zip": "PK", "latin1.tsv": 'caf\udce9"\n'},
        **dict.fromkeys(("latin1.json", "latin1.jsonl"), '{"a": "\udce9"}\n'),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, "utf-8", "surrogateescape")
    with zipfile.ZipFile(tmp_path / "BLiMP.zip", "w") as archive:
        archive.write(tmp_path / "pairs/b.jsonl", "data/b.jsonl")
        archive.writestr("data/readme.txt", "no")
    return tmp_path


def texts(*given: str) -> dict[str, list[str]]:
    return {one.name: [f"{place} {text}" for place, text in one.examples] for one in read_sets(given)}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("rows.tsv:text", ['#2 one "quoted', "#3 three"]),
        ("rows.tsv:other text,text", ['#2 one "quoted', "#2 two", "#3 three", "#4 four"]),
        ("bare.tsv:3", ["#1 one", "#2 two\u2028\x0ctoo"]),
        ("bare.tsv:1", ["#1 a", "#2 b"]),  # a number counts columns, even if the first line has labels
        ("bare.tsv", ["#1 a", "#1 1", "#1 one", "#2 b", "#2 0", "#2 two\u2028\x0ctoo"]),
        ("lines.jsonl:a", ["#1 one", "#1 three"]),
        ("lines.jsonl", ["#1 one", "#1 two", "#1 three", "#3 five"]),
        ("tree.json:context,question", ["#1 one", "#2 ?"]),
        ("tree.json:paragraphs", ["#1 one", "#2 ?"]),
        ("tree.json", ["#1 x", "#2 one", "#3 ?"]),
    ],
)
def test_a_file_gives_all_texts_or_those_of_its_fields(folder: Path, given: str, expected: list[str]) -> None:
    name = given.partition(":")[0]
    expected = [name + text for text in expected]
    assert texts(str(folder / given)) == {name: expected}
    assert texts(f"mine={folder / given}") == {"mine": expected}


def test_named_sets_know_their_files_and_fields(folder: Path) -> None:
    assert texts(f"glue={folder / 'glue'}", f"squad={folder / 'squad'}", f"blimp={folder / 'pairs'}") == {
        "glue": [
            "CoLA/dev.tsv#1 One sailor.",
            "CoLA/dev.tsv#2 Two sailor.",
            "CoLA/test.tsv#2 Three sailors.",
            "MNLI/dev_matched.tsv#2 Four.",
            "MNLI/dev_matched.tsv#2 Five.",
            "MRPC/dev.tsv#2 Six.",
            "MRPC/dev.tsv#2 Seven.",
        ],
        "squad": ["dev-v1.1.json#1 Q", "dev-v1.1.json#2 C"],
        "blimp": ["a.jsonl#1 A.", "a.jsonl#1 Worse.", "b.jsonl#1 B.", "b.jsonl#1 Bad."],
    }
    assert texts(f"squad={folder / 'squad/dev-v1.1.json'}") == {"squad": ["dev-v1.1.json#1 Q", "dev-v1.1.json#2 C"]}
    zipped = {"blimp": ["data/b.jsonl#1 B.", "data/b.jsonl#1 Bad."]}
    assert texts(f"blimp={folder}") == texts(f"blimp={folder / 'BLiMP.zip'}") == zipped


def test_the_digest_depends_on_contents_names_and_fields_but_not_on_the_folder(folder: Path) -> None:
    def digest(given: str) -> str:
        return read_sets([f"x={folder / given}"])[0].sha256

    assert digest("bare.tsv:3") == digest("elsewhere/bare.tsv:3")
    assert len({digest("bare.tsv:3"), digest("bare.tsv"), digest("rows.tsv:text")}) == 3
    (folder / "elsewhere" / "bare.tsv").write_text("a\t0\tother\n")
    assert digest("bare.tsv:3") != digest("elsewhere/bare.tsv:3")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["none.tsv"], "cannot be read"),
        (["none.tsv:a"], "cannot be read"),
        (["rows.tsv:txt"], "rows.tsv of rows.tsv:txt has no text in 'txt'; name JSON keys, columns in the header"),
        (["rows.tsv:text,txt"], "rows.tsv of rows.tsv:text,txt has no text in 'txt'; "),
        (["rows.tsv:text,2"], "has no text in '2'; "),
        (["bare.tsv:0"], "bare.tsv of bare.tsv:0 has no text in '0'; .* column numbers from 1"),
        (["bare.tsv:3,4"], "has no text in '4'; "),
        (["bare.tsv:-1"], "has no text in '-1'; "),
        (["bare.tsv:" + "9" * 200], r"has no text in '9+\.\.\. .202 characters.; "),
        (["bare.tsv:"], "has no text in ''; "),
        (["lines.jsonl:a,x"], "has no text in 'x'; "),
        (["lines.jsonl:a,n"], "has no text in 'n'; "),
        (["tree.json:context,answer"], "has no text in 'answer'; "),
        (["latin1.tsv"], "latin1.tsv is not valid TSV in UTF-8 .* position 3: .*; repair it, or convert it"),
        (["latin1.tsv:1"], "latin1.tsv is not valid TSV in UTF-8"),
        (["latin1.jsonl:a"], "latin1.jsonl is not valid JSON in UTF-8"),
        (["latin1.json"], "latin1.json is not valid JSON in UTF-8"),
        (["lines.jsonl:x,y"], "no text in 'x', 'y'; "),
        (["glue=none"], "cannot be read"),
        (["squad=glue"], "holds no files of this set"),
        (["blimp=rows.tsv"], "is not valid JSON|no text"),
        (["rows.tsv:text", "x=rows.tsv", "elsewhere/rows.tsv"], "two sets are called rows.tsv; rename one"),
        (["bad.json"], "bad.json is not valid JSON in UTF-8"),
        (["bad.jsonl"], "bad.jsonl is not valid JSON in UTF-8"),
        (["pairs=BLiMP.zip"], "BLiMP.zip is not valid TSV in UTF-8|no text in"),
        (["blimp=broken.zip"], "cannot be read"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], problem: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=f"decontaminate: .*({problem})") as error:
        read_sets(given)
    assert "\n" not in str(error.value)


@pytest.mark.timeout(20)  # reading the pipe or the device would never end
@pytest.mark.parametrize("name", ["pipe", "device"])
@pytest.mark.parametrize("given", ["SET", "SET:1", "x=SET:1", "glue=SET", "blimp=SET", "glue=."])
def test_a_pipe_or_device_is_refused_by_name_and_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    place = "dev.tsv" if given == "glue=." else name
    if name == "pipe":
        os.mkfifo(place)
    else:
        Path(place).symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=rf"decontaminate: {place} is a pipe, a socket or a device"):
        read_sets([given.replace("SET", name)])
