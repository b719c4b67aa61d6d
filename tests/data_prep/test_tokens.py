"""Claims about word pieces and the tokenizer folder."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, BertTokenizer, BertTokenizerFast, MPNetTokenizer

from data_prep.tokens import SPECIAL_TOKENS, SubwordTokenizer, from_vocabulary, open_tokenizer
from data_prep.train_vocab import VocabularyOptions
from data_prep.train_vocab import main as train_vocab
from electra_sampler.foundation.config import ConfigError
from tests.data_prep.conftest import SYLLABLES, write_byte_level_bpe
from tests.data_prep.real_text import corpus_files, fuzz_documents, lines_of, some_files

TEXTS = ["Kalo miNE, ruso.", "", "тест KÁ 漢", "[MASK] ka [SEP]", "ka" * 200]


Bert = tuple[SubwordTokenizer, Tokenizer]


@pytest.fixture
def tokenizer(vocab: Path) -> SubwordTokenizer:
    return open_tokenizer(str(vocab))


@pytest.fixture(scope="module")
def bert(shared_data: Path) -> Bert:
    """BERT's vocabulary: our tokenizer and the reference for its ids."""
    path = shared_data / "vocab" / "vocab.txt"
    ours, reference = open_tokenizer(str(path)), BertTokenizerFast.from_pretrained(str(path.parent)).backend_tokenizer
    reference.encode_special_tokens = True  # "[MASK]" in text is plain text
    assert ours.slow_because is None
    return ours, reference


def assert_same_ids(bert: Bert, texts: Sequence[str]) -> None:
    ours, reference = bert
    ids, lengths = ours.encode(texts)
    expected = [encoding.ids for encoding in reference.encode_batch_fast(texts, add_special_tokens=False)]
    assert lengths.tolist() == [len(pieces) for pieces in expected]
    assert np.array_equal(ids, np.fromiter(chain.from_iterable(expected), np.uint16))


LONG = (pytest.mark.long, pytest.mark.timeout(1800))


@pytest.mark.parametrize(
    ("files_of", "lines"), [(some_files, 4000), pytest.param(corpus_files, None, marks=LONG)], ids=["some", "all"]
)
def test_ids_of_real_text_are_those_of_berts_own_tokenizer(
    files_of: Callable[[Path], list[Path]], lines: int | None, bert: Bert, shared_data: Path
) -> None:
    for path in files_of(shared_data):
        assert_same_ids(bert, lines_of(path, lines))


@pytest.mark.parametrize(
    ("characters", "seed"), [(300_000, 0), *(pytest.param(1_000_000, seed, marks=LONG) for seed in range(1, 11))]
)
def test_ids_of_every_kind_of_character_are_those_of_berts_own_tokenizer(
    characters: int, seed: int, bert: Bert
) -> None:
    assert_same_ids(bert, [*TEXTS, *fuzz_documents(characters, seed)])


def test_without_nanotoken_the_ids_are_the_same_and_the_reason_is_printed(
    bert: Bert, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shared_data: Path
) -> None:
    monkeypatch.setitem(sys.modules, "nanotoken", None)  # makes importing it fail
    slow = open_tokenizer(str(shared_data / "vocab" / "vocab.txt"))
    assert "nanotoken is not installed" in capsys.readouterr().err
    texts = lines_of(shared_data / "wiki" / "wikitext2-test.txt", limit=300)
    assert all(np.array_equal(*pair) for pair in zip(slow.encode(texts), bert[0].encode(texts), strict=True))


def test_a_tokenizer_unsupported_by_nanotoken_is_used_directly(tmp_path: Path, vocab: Path) -> None:
    tokenizer = from_vocabulary(vocab.read_text().split())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.BertNormalizer()])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    opened = open_tokenizer(str(tmp_path))
    assert "does not support this tokenizer" in str(opened.slow_because)
    assert len(opened.encode(["ka lo"])[0]) == 2


def test_ids_that_differ_from_hugging_faces_end_the_build_and_name_the_text(vocab: Path, tmp_path: Path) -> None:
    """An encoder with another vocabulary simulates a faulty one."""
    tokens = vocab.read_text().split()
    tokens[5], tokens[6] = tokens[6], tokens[5]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    tokenizer = open_tokenizer(str(vocab))
    tokenizer._fast = open_tokenizer(str(tmp_path))._fast
    tokenizer.encode(["mi ne"])
    with pytest.raises(ConfigError, match="different ids for 'lo mi'"):
        tokenizer.encode(["mi ne", "lo mi"])


def test_a_tokenizer_saved_with_truncation_and_padding_still_encodes_whole_texts(vocab: Path, tmp_path: Path) -> None:
    tokenizer = from_vocabulary(vocab.read_text().split())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    _, lengths = open_tokenizer(str(tmp_path)).encode(["ka " * 50, "ka"])
    assert lengths.tolist() == [50, 1]


def test_special_tokens_written_in_a_text_are_text(tokenizer: SubwordTokenizer) -> None:
    ids, _ = tokenizer.encode(["ka [MASK] lo [SEP] [CLS] [PAD]"])
    assert not tokenizer.never_masked[ids].any()
    assert tokenizer.tokens[ids[0]] == "ka"


def test_the_vocabularys_properties_that_data_preparation_needs(tokenizer: SubwordTokenizer) -> None:
    assert dict(tokenizer.special) == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert tokenizer.never_masked.nonzero()[0].tolist() == [0, 2, 3, 4]
    assert [tokenizer.tokens[number] for number in tokenizer.continuation.nonzero()[0]] == [f"##{s}" for s in SYLLABLES]


@pytest.mark.parametrize("adds_space", [True, False])
def test_ids_of_a_byte_level_bpe_are_hugging_faces_in_four_languages(
    adds_space: bool, shared_data: Path, tmp_path: Path
) -> None:
    """Of text that follows other text, in exports too: ModernBERT's gives a text's first word another id."""
    novels = [sorted(shared_data.glob(f"languages/{code}/*.xz"))[0] for code in ("de", "hu", "tr")]
    files = [*novels, *some_files(shared_data)[:2]]
    learned = tuple(path for path in files if ".txt" in path.name)
    train_vocab(VocabularyOptions(input=learned, output=tmp_path / "vocab", size=1500, kind="bpe", sample_mb=0.3))
    if not adds_space:
        settings = json.loads((tmp_path / "vocab" / "tokenizer.json").read_text())
        settings["pre_tokenizer"]["add_prefix_space"] = False
        (tmp_path / "vocab" / "tokenizer.json").write_text(json.dumps(settings))
    ours, theirs = open_tokenizer(str(tmp_path / "vocab")), AutoTokenizer.from_pretrained(tmp_path / "vocab")
    ours.save(tmp_path / "saved")
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert open_tokenizer(str(tmp_path / "saved")).sha256() == ours.sha256()
    for path in files:
        lines = [line.strip() for line in lines_of(path, limit=400) if line.strip()]
        ids, lengths = ours.encode(lines)
        expected = theirs([f" {line}" for line in lines], add_special_tokens=False)["input_ids"]
        assert saved(lines, add_special_tokens=False)["input_ids"] == expected
        assert lengths.tolist() == [len(pieces) for pieces in expected]
        assert ids.tolist() == [*chain.from_iterable(expected)]
        assert theirs.decode(ids[: lengths[0]]).strip() == lines[0]


@pytest.mark.parametrize("special", [False, True])
def test_added_tokens_of_a_byte_level_bpe_give_hugging_faces_ids(special: bool, tmp_path: Path) -> None:
    added = *(" " * size for size in (8, 4, 3, 2)), "covid", "Größe"
    folder = write_byte_level_bpe(tmp_path / "bpe", *added, special=special)
    ours, theirs = open_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)
    ours.save(tmp_path / "saved")
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in ("the end.  the next", "day   one", "if:\n    then", "the day", "a covid, (covid)", "Größe  \u00e9"):
        expected = theirs(f" {text}", add_special_tokens=False)["input_ids"]
        assert ours.encode([text])[0].tolist() == saved(text, add_special_tokens=False)["input_ids"] == expected
    shown = dict(zip(ours.tokens, ours.shown, strict=True))
    assert (shown["covid"], shown["Größe"], shown["Ġday"]) == ("##covid", "##Größe", "day")


def test_an_added_token_before_which_the_normalizer_stops_is_refused(tmp_path: Path) -> None:
    folder = write_byte_level_bpe(tmp_path / "bpe", "covid", normalized=False)
    with pytest.raises(ConfigError, match="has the added token 'covid' with normalized false; save it with true"):
        open_tokenizer(str(folder))


def test_pieces_of_a_byte_level_bpe_begin_words_where_word_pieces_do(tmp_path: Path) -> None:
    """Here most pieces are single bytes: in a script without spaces, the first byte of a letter begins a word."""
    tokenizer = open_tokenizer(str(write_byte_level_bpe(tmp_path / "bpe")))
    starts = {
        "the day, naïve": "the| day|,| naïve",
        "ab-c.d/e?f": "ab|-c|.d|/e|?f",
        "日本、カタ語": "|日|本|、|カ|タ|語",
        "việc тест हिन्दी": "việc| тест| हिन्दी",
        "한국어를": "한국어를",
        "\n\nthe": "|\n|\nthe",
    }
    for text, words in starts.items():
        ids = tokenizer.encode([text])[0]
        spelled = "".join(("" if tokenizer.continuation[n] else "|") + tokenizer.spelled[n] for n in ids)
        expected = "|".join(spell(word) for word in words.split("|"))
        assert spelled.removeprefix("|").removeprefix("Ġ") == expected.removeprefix("Ġ"), text


def spell(text: str) -> str:
    step = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(part for part, _ in step.pre_tokenize_str(text))


@pytest.mark.parametrize("added", ["", "covid\n"])
@pytest.mark.parametrize("beside", [(), ("tokenizer_config.json",), ("tokenizer.json",)])
def test_the_vocab_txt_of_a_byte_level_bpe_is_never_read_as_word_pieces(
    added: str, beside: tuple[str, ...], tmp_path: Path
) -> None:
    folder = write_byte_level_bpe(tmp_path / "bpe")
    expected = open_tokenizer(str(folder)).sha256()
    assert open_tokenizer(str(folder / "vocab.txt")).sha256() == expected
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "vocab.txt").write_text((folder / "vocab.txt").read_text() + added)
    for name in beside:
        shutil.copy(folder / name, tmp_path / "other")
    if "tokenizer.json" in beside and not added:
        assert open_tokenizer(str(tmp_path / "other" / "vocab.txt")).sha256() == expected
    else:
        is_fast = "tokenizer_config.json" in beside  # whose class is refused first
        lacks = "which a vocab.txt alone does not define" if is_fast else "a byte-level BPE's tokens without its merges"
        with pytest.raises(ConfigError, match=rf"{lacks}.*tokenizer\.json"):
            open_tokenizer(str(tmp_path / "other" / "vocab.txt"))


def test_a_token_of_another_vocabulary_is_cut_into_pieces_by_either_kind(
    tmp_path: Path, tokenizer: SubwordTokenizer, vocab: Path
) -> None:
    bpe = open_tokenizer(str(write_byte_level_bpe(tmp_path / "bpe")))
    longer = open_tokenizer(str(write_byte_level_bpe(tmp_path / "longer", "theday", "Größe", " and")))
    cut = [[bpe.tokens[piece] for piece in bpe.pieces(one)] for one in (*longer.spelled[bpe.vocab_size :], "日")]
    assert cut == [["the", "day"], ["G", "r", "Ã", "¶", "Ã", "Ł", "e"], ["Ġand"], ["[UNK]"]]
    (tmp_path / "vocab.txt").write_text(vocab.read_text() + "kalo\n##mine\nxyz\n")
    longer = open_tokenizer(str(tmp_path / "vocab.txt"))
    cut = [[tokenizer.tokens[piece] for piece in tokenizer.pieces(one)] for one in longer.spelled[-3:]]
    assert cut == [["ka", "##lo"], ["##mi", "##ne"], ["[UNK]"]]


BERTS = normalizers.BertNormalizer


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "lower_cases"),
    [
        (BERTS(), pre_tokenizers.BertPreTokenizer(), True),
        (BERTS(lowercase=True, strip_accents=False), pre_tokenizers.BertPreTokenizer(), True),
        (BERTS(lowercase=False, strip_accents=True), pre_tokenizers.BertPreTokenizer(), False),
        (BERTS(handle_chinese_chars=False), pre_tokenizers.BertPreTokenizer(), True),
        (BERTS(clean_text=False), pre_tokenizers.BertPreTokenizer(), None),
        (normalizers.NFKC(), pre_tokenizers.BertPreTokenizer(), None),
        (BERTS(lowercase=False), pre_tokenizers.WhitespaceSplit(), None),
    ],
)
def test_the_saved_folder_gives_the_same_ids_in_transformers_by_settings_of_berts_class_where_it_has_them(
    normalizer: normalizers.Normalizer,
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    lower_cases: bool | None,
    tmp_path: Path,
) -> None:
    made = from_vocabulary([*SPECIAL_TOKENS, "elan", "élan", "e", "é", "##é", "É", "漢", "漢字", "##字", ",", "e,é"])
    made.normalizer, made.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer = SubwordTokenizer(made)
    tokenizer.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()).get("do_lower_case") == lower_cases
    text = "Élan elan é É 漢字 \x07e e,é ｅ"
    ids, _ = tokenizer.encode([text])
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encode(text, add_special_tokens=False) == ids.tolist()
    assert loaded("e", "é")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert (loaded.pad_token_id, loaded.mask_token_id) == (0, 4)


def test_a_token_may_be_a_unicode_line_separator(tmp_path: Path, vocab: Path) -> None:
    (tmp_path / "vocab.txt").write_text(vocab.read_text().rstrip("\n").replace("\nka\n", "\n\u2028\nka\n") + "\r\n")
    tokenizer = open_tokenizer(str(tmp_path / "vocab.txt"))
    assert tokenizer.tokens.index("ka") == vocab.read_text().split().index("ka") + 1
    assert tokenizer.vocab_size == len(vocab.read_text().split()) + 1


def test_a_file_a_folder_and_a_saved_folder_give_the_same_tokenizer(vocab: Path, tmp_path: Path) -> None:
    shutil.copy(vocab, tmp_path / "vocab.txt")
    open_tokenizer(str(vocab)).save(tmp_path / "saved")
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf" + vocab.read_bytes())
    names = ("", "saved", "saved/tokenizer.json", "saved/tokenizer_config.json", "marked.txt")
    assert {open_tokenizer(str(tmp_path / name)).sha256() for name in names} == {open_tokenizer(str(vocab)).sha256()}
    assert SubwordTokenizer.load(tmp_path / "saved").sha256() == open_tokenizer(str(vocab)).sha256()


def test_a_folder_without_tokenizer_json_normalizes_text_as_its_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "élan", "elan", "漢字", "漢"]), encoding="utf-8")
    settings = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    for name in (tmp_path, tmp_path / "vocab.txt"):
        assert open_tokenizer(str(name)).encode(["Élan 漢字"])[0].tolist() == [5, 7]
    (tmp_path / "other.txt").write_text("\n".join([*SPECIAL_TOKENS, "elan"]))
    assert open_tokenizer(str(tmp_path / "other.txt")).encode(["Élan 漢字"])[0].tolist() == [5, 1, 1]


SAVED: dict[str, dict[str, dict[str, object]]] = {
    "added_tokens.json": {"added_tokens.json": {"covid-19": 10, "<url>": 11}},
    "tokenizer_class": {"tokenizer_config.json": {"tokenizer_class": "BertJapaneseTokenizer"}},
    "<url>": {"special_tokens_map.json": {"additional_special_tokens": ["<url>"]}},
}


@pytest.mark.parametrize("named", SAVED)
def test_a_file_or_setting_that_a_vocab_txt_does_not_hold_is_refused_by_name(tmp_path: Path, named: str) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "the", "of", "covid", "-", "19"]) + "\n")
    for name, values in SAVED[named].items():
        (tmp_path / name).write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=f"vocab: .*{named}"):
        open_tokenizer(str(tmp_path))


@pytest.mark.parametrize("setting", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_a_setting_that_contradicts_tokenizer_json_is_refused_by_name(
    vocab: Path, tmp_path: Path, setting: str
) -> None:
    BertTokenizer(str(vocab), do_lower_case=True, strip_accents=True).save_pretrained(tmp_path)
    open_tokenizer(str(tmp_path))
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {setting: False}))
    with pytest.raises(ConfigError, match=rf"config\.json has {setting} false, but tokenizer\.json has \w+ true"):
        open_tokenizer(str(tmp_path))


@pytest.mark.parametrize("whole", [True, False])
def test_special_tokens_have_the_ids_that_their_folder_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """MPNet's folders also hold BERT's, at other ids; a placeholder in a text keeps its one id. So on the hub."""
    marks = {"cls": "<s>", "sep": "</s>", "pad": "<pad>", "mask": "<mask>", "unk": "[UNK]"}
    words = [*marks.values(), "[PAD]", "[CLS]", "[SEP]", "[MASK]", "<url>", "the", "of", "<", "/", ">", "s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    named = {f"{name}_token": token for name, token in marks.items()}
    reference = MPNetTokenizer(str(tmp_path / "vocab.txt"), additional_special_tokens=["<url>"], **named)
    reference.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "vocab.txt").write_bytes((tmp_path / "vocab.txt").read_bytes())
    if not whole:
        (tmp_path / "saved" / "tokenizer.json").unlink()
    saved, hub = tmp_path / "saved", tmp_path / "hub"
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda _, allow_patterns: shutil.copytree(saved, hub, ignore=lambda _, names: {*names} - {*allow_patterns}),
    )
    for ours in map(open_tokenizer, ("owner/mpnet", str(saved))):
        assert {name: words[number] for name, number in ours.special} == marks
    text = "The <url> of the"
    expected = reference(text, add_special_tokens=False)["input_ids"]
    assert "<url>" in [words[number] for number in expected]
    ours.save(tmp_path / "again")
    for tokenizer in (ours, SubwordTokenizer.load(tmp_path / "again")):
        assert tokenizer.encode([text])[0].tolist() == expected
    assert AutoTokenizer.from_pretrained(tmp_path / "again")(text)["input_ids"] == [0, *expected, 1]


def test_the_hash_distinguishes_vocabularies(vocab: Path, tmp_path: Path) -> None:
    tokens = vocab.read_text().split()
    tokens[-1], tokens[-2] = tokens[-2], tokens[-1]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    assert open_tokenizer(str(tmp_path)).sha256() != open_tokenizer(str(vocab)).sha256()


def test_capital_letters_in_a_vocabulary_make_it_case_sensitive(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "Paris", "paris"]))
    ids, _ = open_tokenizer(str(tmp_path)).encode(["Paris paris"])
    assert ids.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nka", r"lacks \[MASK\]"),
        ("vocab.txt", "\n".join([*SPECIAL_TOKENS, *(f"w{n}" for n in range(1 << 16))]), "at most 65536"),
        (
            "vocab.txt",
            "\n".join([*SPECIAL_TOKENS, "ka", "lo", "ka", "mi"]),
            "repeats a token or skips an id; give every",
        ),
        (
            "tokenizer.json",
            Tokenizer(models.BPE()).to_str(),
            "is neither WordPiece with ## pieces nor a byte-level BPE",
        ),
        ("tokenizer.json", "{", "no tokenizer can be read"),
        ("readme", "", "no tokenizer can be read"),
    ],
    ids=["no mask", "too many", "repeated", "BPE", "damaged", "none"],
)
def test_unusable_vocabularies_are_refused_with_the_reason(
    tmp_path: Path, name: str, content: str, reason: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=reason) as caught:
        open_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(20)  # reading the pipe or the device would never end
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_pipe_or_device_is_refused_and_not_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "vocab.txt")
    for given in (tmp_path / "vocab.txt", tmp_path):
        with pytest.raises(ConfigError, match=r"vocab: .*vocab\.txt is a pipe, a socket or a device"):
            open_tokenizer(str(given))


def test_a_mistyped_path_does_not_contact_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    for name in ("data/vocba", "missing.txt", "/no/such/folder", "a/b/c"):
        with pytest.raises(ConfigError, match="does not exist"):
            open_tokenizer(name)
