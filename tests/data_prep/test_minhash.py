"""Claims about MinHash keys."""

import hashlib
import lzma
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from data_prep import minhash
from data_prep.curation.words import words
from data_prep.formats import Document, Format, Reading, parse
from data_prep.minhash import BANDS, document_keys
from tests.data_prep.real_text import fuzz_documents


def bands_of(*texts: str) -> np.ndarray:
    return np.concatenate(list(document_keys([Document(text.encode(), 0) for text in texts], near=True)))[:, 1:]


@pytest.mark.parametrize(
    ("text", "same", "different"),
    [
        ("One two, three! Four five six.", "one TWO three\nfour (five) six", "six one two three"),
        ("***", "***", "---"),
    ],
    ids=["case and punctuation make no difference and order does", "texts without words have equal bytes"],
)
def test_a_copy_has_all_bands_of_its_text_and_another_text_none(text: str, same: str, different: str) -> None:
    of_text, of_same, of_different = bands_of(text, same, different)
    assert (of_text == of_same).all()
    assert (of_text != of_different).all()


def test_texts_without_spaces_are_compared_by_characters() -> None:
    text = "吾輩は猫である名前はまだ無いどこで生れたかとんと見当がつかぬ" * 2
    one, other = bands_of(text, text[1:])
    assert (one == other).any()


@pytest.mark.parametrize(
    ("document", "has_keys"),
    [
        (Document(b"one two", 0, "no_text"), False),
        (Document(b"", 0), False),
        (Document(b"one \xff\xed\xa0\x80 two", 0), True),
    ],
    ids=["skipped", "empty", "malformed"],
)
def test_a_document_has_keys_unless_it_is_dropped_anyway(document: Document, has_keys: bool) -> None:
    [keys] = document_keys([document], near=True)
    assert ((keys != 0) == has_keys).all()


def test_the_first_key_is_the_digest_and_the_others_are_in_ascending_order() -> None:
    documents = [Document(f"Document number {n}.".encode(), 0) for n in range(100)]
    [keys] = document_keys(documents, near=True)
    assert keys[:, 0].tobytes() == b"".join(document.digest for document in documents)
    assert (keys[:, 1:] >> np.uint64(60)).tolist() == [list(range(BANDS))] * 100


@pytest.mark.parametrize("at_once", [400, 5000])
def test_batches_and_other_documents_change_no_key(
    at_once: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    texts = [" ".join(map(str, range(start, start + 3000))) for start in range(60)]
    texts[1:1] = fuzz_documents(20_000, seed=0)
    together = bands_of(*texts)
    assert together.shape == (len(texts), BANDS)
    assert (bands_of(*texts[::-1]) == together[::-1]).all()
    assert (bands_of(texts[-1]) == together[-1]).all()
    monkeypatch.setattr(minhash, "_AT_ONCE", at_once)
    minhash._tables.cache_clear()
    request.addfinalizer(minhash._tables.cache_clear)
    assert (bands_of(*texts) == together).all()


def test_equal_words_have_equal_hashes_and_others_others() -> None:
    texts = [*fuzz_documents(100_000, seed=1), "İstanbul’s naïve na\u0131ve CAFE\u0301 x_y 日本hyōカタ ที่นี่ -3.14"]
    expected = [word for text in texts for word in words(unicodedata.normalize("NFC", text).lower())]
    hashes, _ = minhash._words([text.encode() for text in texts])
    assert len(hashes) == len(expected)
    assert len(set(zip(hashes.tolist(), expected, strict=True))) == len(set(expected)) == len(set(hashes.tolist()))


@pytest.mark.parametrize("similarity", [0.3, 0.5, 0.7, 0.8, 0.9])
def test_the_share_of_pairs_with_a_common_key_is_that_of_ideal_random_hashes(similarity: float) -> None:
    """1 - (1 - J^7)^16, as stated in the module and the docs; the sets have 400 shingles."""
    random = np.random.default_rng(0)
    shared = round(800 * similarity / (1 + similarity)) + 4
    pairs = []
    for _ in range(500):
        words = random.integers(0, 10**4, 808 - shared)
        pairs += [words[:404], np.concatenate((words[:shared], words[404:]))]
    bands = bands_of(*(" ".join(map(str, words)) for words in pairs))
    found = (bands[::2] == bands[1::2]).any(axis=1).mean()
    expected = 1 - (1 - similarity**7) ** BANDS
    assert found == pytest.approx(expected, abs=3 * np.sqrt(expected * (1 - expected) / 500) + 0.002)


def test_keys_never_change_because_builds_resume_with_those_on_disk() -> None:
    texts = "The quick brown fox jumps over.", "", "Ka.", "..."
    [keys] = document_keys([Document(text.encode(), 0) for text in texts], near=True)
    assert hashlib.sha256(keys.tobytes()).hexdigest().startswith("52e145072a2c4a66")


def edited(text: str, others: list[str], rate: float, random: np.random.Generator) -> str:
    """The text with words replaced, or left out, or with its end replaced by another text's."""
    words, other = text.split(" "), others[random.integers(len(others))].split(" ")
    kind = random.integers(3)
    if kind == 0:
        return " ".join(other[random.integers(len(other))] if random.random() < rate else word for word in words)
    if kind == 1:
        return " ".join(word for word in words if random.random() >= rate)
    kept = int(len(words) * (1 - min(0.95, 5 * rate)))
    return " ".join(words[:kept] + other[: len(words) - kept])


def shingles_of(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[^\W_]+", text.lower())
    return {tuple(words[start : start + 5]) for start in range(max(1, len(words) - 4))}


def jaccard(*pair: str) -> float:
    one, other = map(shingles_of, pair)
    return len(one & other) / len(one | other)


@pytest.mark.long
def test_edited_articles_of_wikipedia_are_found_by_their_similarity_and_others_are_not(shared_data: Path) -> None:
    """At least 99% of those at .8 and above, under 1% at .3 and below; no two articles below .3 have a common key."""
    with lzma.open(shared_data / "wiki" / "enwiki-AA-0.xz") as file:
        content = file.read(12_000_000)
    content = content[: content.rfind(b"</doc>")]
    texts = [document.content.decode() for document in parse(Format.WIKI_EXTRACTOR, content, 0, Reading())]
    long = [text for text in texts if text.count(" ") >= 100]
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(2000):
        text = long[random.integers(len(long))]
        rate = random.choice([0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2])
        pairs.append((text, edited(text, texts, rate, random)))
    similarity = np.array([jaccard(*pair) for pair in pairs])
    bands = bands_of(*(text for pair in pairs for text in pair))
    found = (bands[::2] == bands[1::2]).any(axis=1)
    near, far = similarity >= 0.8, similarity <= 0.3
    assert min(near.sum(), far.sum()) > 200
    assert found[near].mean() >= 0.99
    assert found[far].mean() < 0.01
    bands = bands_of(*texts)
    for band in bands.T:
        order = np.argsort(band)
        for place in np.flatnonzero(band[order][1:] == band[order][:-1]):
            assert jaccard(texts[order[place]], texts[order[place + 1]]) > 0.3
