"""Claims about word pieces and the tokenizer folder."""

import json
import shutil

import pytest
from tokenizers import Tokenizer, models

from data_prep.config import ConfigError
from data_prep.tokens import SPECIAL_TOKENS, WordPiece, open_tokenizer

TEXTS = ["Kalo miNE, ruso.", "", "тест KÁ 漢", "[MASK] ka [SEP]", "ka" * 200]


@pytest.fixture
def tokenizer(vocab):
    return open_tokenizer(str(vocab))


def test_ids_are_those_of_berts_own_tokenizer(shared_data):
    from transformers import BertTokenizer

    path = shared_data / "vocab" / "vocab.txt"
    reference = BertTokenizer.from_pretrained(str(path.parent))
    texts = (shared_data / "wiki" / "wikitext2-test.txt").read_text().splitlines()[:400] + TEXTS[:3] + TEXTS[4:]
    ids, lengths = open_tokenizer(str(path)).encode(texts)
    expected = [reference.encode(text, add_special_tokens=False) for text in texts]
    assert lengths.tolist() == [len(pieces) for pieces in expected]
    assert ids.tolist() == [number for pieces in expected for number in pieces]


def test_special_tokens_written_in_a_text_are_text(tokenizer):
    ids, _ = tokenizer.encode(["ka [MASK] lo [SEP] [CLS] [PAD]"])
    assert not tokenizer.never_masked[ids].any()
    assert tokenizer.tokens[ids[0]] == "ka"


def test_what_data_preparation_must_know_of_the_vocabulary(tokenizer):
    assert [getattr(tokenizer.special, name) for name in ("pad", "unk", "cls", "sep", "mask")] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert [tokenizer.tokens[number] for number in tokenizer.never_masked.nonzero()[0]] == [
        "[PAD]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]
    assert all(tokenizer.tokens[number].startswith("##") for number in tokenizer.continuation.nonzero()[0])
    assert tokenizer.continuation.sum() == 8


def test_the_saved_folder_is_loaded_by_transformers_with_the_same_ids(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids, _ = tokenizer.encode(["Kalo mine."])
    assert loaded.encode("Kalo mine.", add_special_tokens=False) == ids.tolist()
    assert loaded("Kalo", "mine")["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert (loaded.pad_token_id, loaded.mask_token_id) == (0, 4)


def test_a_file_a_folder_and_a_saved_folder_are_the_same_tokenizer(vocab, tmp_path):
    shutil.copy(vocab, tmp_path / "vocab.txt")
    open_tokenizer(str(vocab)).save(tmp_path / "saved")
    names = (str(vocab), str(tmp_path), str(tmp_path / "saved"))
    assert len({open_tokenizer(name).sha256() for name in names}) == 1
    assert WordPiece.load(tmp_path / "saved").sha256() == open_tokenizer(str(vocab)).sha256()


def test_the_hash_tells_vocabularies_apart(vocab, tmp_path):
    tokens = vocab.read_text().split()
    tokens[-1], tokens[-2] = tokens[-2], tokens[-1]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    assert open_tokenizer(str(tmp_path)).sha256() != open_tokenizer(str(vocab)).sha256()


def test_capital_letters_in_a_vocabulary_keep_the_case(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "Paris", "paris"]))
    ids, _ = open_tokenizer(str(tmp_path)).encode(["Paris paris"])
    assert ids.tolist() == [5, 6]


def write_missing_special(folder):
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nka")


def write_bpe(folder):
    Tokenizer(models.BPE()).save(str(folder / "tokenizer.json"))


def write_junk(folder):
    (folder / "tokenizer.json").write_text("{")


def write_nothing(folder):
    (folder / "readme").write_text("")


def write_too_many(folder):
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *(f"w{n}" for n in range(1 << 16))]))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (write_missing_special, r"lacks \[MASK\]"),
        (write_bpe, "is not a WordPiece tokenizer"),
        (write_junk, "no tokenizer can be read"),
        (write_nothing, "no tokenizer can be read"),
        (write_too_many, "at most 65536"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(tmp_path, write, reason):
    write(tmp_path)
    with pytest.raises(ConfigError, match=reason) as caught:
        open_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_slip_in_a_path_does_not_reach_the_hub(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Tokenizer, "from_pretrained", lambda name: pytest.fail("asked the hub"))
    for name in ("data/vocba", "missing.txt", "/no/such/folder", "a/b/c"):
        with pytest.raises(ConfigError, match="does not exist"):
            open_tokenizer(name)


def test_the_folder_says_how_text_is_cleaned(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["do_lower_case"] is True
