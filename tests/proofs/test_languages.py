"""Claims about languages: ids are Hugging Face's, nothing is lost silently, vocabularies cover as much as theirs."""

import sys
import unicodedata
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import BertWordPieceTokenizer, normalizers
from transformers import AutoTokenizer, ElectraConfig

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build
from data_prep.manifest import load_manifest
from data_prep.tokens import SPECIAL_TOKENS, SubwordTokenizer, from_vocabulary, open_tokenizer
from data_prep.train_vocab import VocabularyOptions, train_vocabulary
from data_prep.train_vocab import main as train
from pretrain.huggingface.folders import load_tokenizer
from tests.data_prep.real_text import lines_of

# Article 1 of the Universal Declaration of Human Rights, or its first sentence
DECLARATION = (
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Große Maßstäbe, GROẞ und ÄHNLICH.",
    "Minden emberi lény szabadon születik és egyenlő méltósága és joga van. Őrült űrhajó, kór, kör, kőr.",
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. İstanbul'da ışık, Iğdır'da ilkbahar.",
    "Все люди рождаются свободными и равными в своём достоинстве и правах. Ёлка, Їжак, й.",
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。ガギグ ｶﾞｷﾞ ﾊﾟ",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق، وقد وُهِبوا عقلاً وضميرًا. ﻻ ﷺ",
    "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ น้ำใจ",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. ΣΟΦΌΣ",
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"cased": True},
    {"keep_accents": True},
    {"cased": True, "unicode_form": "nfc"},
    {"keep_accents": True, "unicode_form": "nfkc"},
    {"keep_accents": True, "unicode_form": "nfd"},
    {"unicode_form": "nfkd", "join_cjk": True},
    {"cased": True, "join_cjk": True},
)
EVERY_SETTING = pytest.mark.parametrize(
    "settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings)) or "none"
)
EVERY_CODE = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")]
"""The assigned characters."""


def lines_of_languages(shared_data: Path, limit: int | None = None) -> list[str]:
    """Lines of German and Hungarian novels, and of Turkish, English and Twitter's treebanks and tags as they are."""
    folders = ("languages/de", "languages/hu", "languages/tr", "pos/gum", "ner/wnut17")
    lines: list[str] = []
    for path in chain.from_iterable(sorted((shared_data / folder).glob("*.xz")) for folder in folders):
        lines += lines_of(path, limit)
    return lines


def conformance(step: int) -> list[str]:
    """Characters alone and inside a word, in all four forms, and with two marks in and out of canonical order."""
    characters = map(chr, EVERY_CODE[::step])
    return [
        f"{form} a{form}b {character}\u0301\u0323 {character}\u0323\u0301"
        for character in characters
        for form in sorted({character} | {unicodedata.normalize(f, character) for f in ("NFC", "NFD", "NFKC", "NFKD")})
    ]


def tokenizer_of(texts: list[str], size: int = 3000, **settings: object) -> SubwordTokenizer:
    options = VocabularyOptions.model_validate({"size": size, **settings})
    return SubwordTokenizer(from_vocabulary(train_vocabulary(lambda: iter(texts), options), options.normalizer))


def reference_of(
    tokens: list[str],
    cased: bool = False,
    keep_accents: bool = False,
    unicode_form: str = "none",
    join_cjk: bool = False,
) -> Callable[[list[str]], list[list[int]]]:
    """Hugging Face's own class for BERT's tokenizer, after its own normalization to a Unicode form."""
    bert = BertWordPieceTokenizer(
        {token: number for number, token in enumerate(tokens)},
        lowercase=not cased,
        strip_accents=not cased and not keep_accents,
        handle_chinese_chars=not join_cjk,
    )
    bert._tokenizer.encode_special_tokens = True  # "[MASK]" in text is plain text
    form = normalizers.Sequence([]) if unicode_form == "none" else getattr(normalizers, unicode_form.upper())()

    def ids(texts: list[str]) -> list[list[int]]:
        normalized = [form.normalize_str(text) for text in texts]
        return [encoding.ids for encoding in bert.encode_batch(normalized, add_special_tokens=False)]

    return ids


@EVERY_SETTING
@pytest.mark.parametrize(
    ("limit", "trained_on", "size", "step"),
    [
        (40, 1, 3000, 97),
        pytest.param(None, 50, 8000, 1, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
    ids=["a sample", "all text and every character"],
)
def test_ids_are_hugging_faces_in_every_language(
    limit: int | None, trained_on: int, size: int, step: int, settings: dict[str, Any], shared_data: Path
) -> None:
    texts = [*DECLARATION * 3, *lines_of_languages(shared_data, limit)]
    tokenizer = tokenizer_of([*DECLARATION * 3, *texts[::trained_on]], size, **settings)
    assert tokenizer.slow_because is None
    texts += conformance(step)
    for first in range(0, len(texts), 10_000):
        part = texts[first : first + 10_000]
        ids, lengths = tokenizer.encode(part)
        expected = reference_of(tokenizer.tokens, **settings)(part)
        assert lengths.tolist() == list(map(len, expected))
        assert np.array_equal(ids, np.fromiter(chain.from_iterable(expected), np.uint16))


@EVERY_SETTING
def test_the_folder_gives_the_same_ids_in_transformers_and_in_fine_tuning(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = tokenizer_of(list(DECLARATION * 3), **settings)
    tokenizer.save(tmp_path)
    ElectraConfig().save_pretrained(tmp_path)
    ids, _ = tokenizer.encode(DECLARATION)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)):
        encoded = loaded(list(DECLARATION), add_special_tokens=False).input_ids
        assert list(chain.from_iterable(encoded)) == ids.tolist()
    assert open_tokenizer(str(tmp_path / "vocab.txt")).sha256() == tokenizer.sha256()


@EVERY_SETTING
def test_a_character_gives_a_piece_or_unk_unless_it_is_invisible_or_a_stripped_accent(settings: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(list(DECLARATION * 3), **settings)
    _, lengths = tokenizer.encode(list(map(chr, EVERY_CODE)))
    form = settings.get("unicode_form", "none")
    strips = not settings.get("cased") and not settings.get("keep_accents")
    lost = {"Cc", "Cf", "Zs", "Zl", "Zp"} | ({"Mn"} if strips else set())
    exceptions = {"\ufffd"} | ({"\u1734"} if strips else set())  # BERT drops the first; the other was once Mn
    for code in np.array(EVERY_CODE)[lengths == 0].tolist():
        parts = unicodedata.normalize("NFD" if form == "none" else form.upper(), chr(code))
        parts = unicodedata.normalize("NFD", parts) if strips else parts
        assert {unicodedata.category(part) for part in parts} <= lost or chr(code) in exceptions, hex(code)


@EVERY_SETTING
def test_the_pieces_of_a_text_are_its_normalized_text(settings: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(list(DECLARATION * 3), **settings)
    normalizer = VocabularyOptions.model_validate(settings).normalizer
    for text in DECLARATION:
        ids, _ = tokenizer.encode([text])
        pieces = "".join(tokenizer.tokens[number].removeprefix("##") for number in ids)
        assert pieces == "".join(normalizer.normalize_str(text).split())


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        ("İki ılık Ilık", {}, "iki ılık ilık"),  # neither is Turkish: hence --cased
        ("İki ılık Ilık", {"keep_accents": True}, "i̇ki ılık ilık"),
        ("İki ılık Ilık", {"cased": True}, "İki ılık Ilık"),
        ("Straße ÄRGER ẞ", {}, "straße arger ß"),
        ("Straße ÄRGER ẞ", {"keep_accents": True}, "straße ärger ß"),
        ("Straße Ärger ẞ", {"cased": True}, "Straße Ärger ẞ"),
        ("kor kór kör kőr", {}, "kor kor kor kor"),
        ("KOR KÓR KÖR KŐR", {"keep_accents": True}, "kor kór kör kőr"),
        ("ko\u030br", {"keep_accents": True, "unicode_form": "nfc"}, "kőr"),
        ("Ёлка", {}, "елка"),
        ("Ёлка", {"keep_accents": True}, "ёлка"),
        ("自由。", {}, "自 由 。"),
        ("自由。", {"join_cjk": True}, "自由 。"),
        ("ｶﾞ", {"cased": True, "unicode_form": "nfkc"}, "ガ"),
        ("한국", {"cased": True}, "한국"),
        ("한국", {}, unicodedata.normalize("NFD", "한국")),
        ("وُهِبوا؟", {}, "وهبوا ؟"),
        ("وُهِبوا؟", {"keep_accents": True}, "وُهِبوا ؟"),
        ("ﻻ", {"unicode_form": "nfkc"}, "لا"),
        ("ที่นี่", {}, "ทน"),  # vowels are lost: hence --keep_accents
        ("ที่นี่", {"keep_accents": True}, "ที่นี่"),
        ("น้ำ", {"keep_accents": True, "unicode_form": "nfc"}, "น้ำ"),
    ],
)
def test_the_words_of_a_language_are_these(text: str, settings: dict[str, Any], expected: str) -> None:
    tokenizer = tokenizer_of([f"{text} abc"] * 3, 200, **settings)
    ids, _ = tokenizer.encode([text])
    assert [tokenizer.tokens[number] for number in ids] == expected.split()


def test_a_cased_build_needs_no_option_but_its_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("\n\n".join(DECLARATION * 20), encoding="utf-8")
    options: dict[str, Any] = {"input": (tmp_path / "raw.txt",), "output": tmp_path / "vocab", "size": 3000}
    assert train(VocabularyOptions.from_values(options | {"cased": True, "unicode_form": "nfc"})) == 0
    shards: dict[str, Any] = {
        "output": tmp_path / "shards",
        "vocab": str(tmp_path / "vocab"),
        "seq_length": 64,
        "workers": 1,
    }
    assert build(BuildOptions.from_values(shards | {"input": options["input"], "sentences": "marks"})) == 0
    tokenizer = open_tokenizer(str(tmp_path / "vocab"))
    manifest = load_manifest(tmp_path / "shards")
    assert manifest.tokenizer_sha256 == tokenizer.sha256()
    assert (manifest.config.sentences, manifest.totals.unknown_share) == ("marks", 0)
    assert SubwordTokenizer.load(tmp_path / "shards" / "tokenizer").tokens == tokenizer.tokens
    assert {"Ő", "ß", "İ", "ี"} <= set(tokenizer.tokens)


def coverage(encode: Callable[[list[str]], list[list[int]]], texts: list[str], unknown: int) -> tuple[float, float]:
    """Pieces per word between white space, and the share of [UNK] among the pieces."""
    ids = list(chain.from_iterable(encode(texts)))
    return len(ids) / sum(len(text.split()) for text in texts), ids.count(unknown) / len(ids)


def assert_same_coverage(texts: list[str], size: int, **settings: Any) -> None:
    """Trains on four fifths of the lines, and compares on the others."""
    held_out = texts[::5]
    seen = [text for number, text in enumerate(texts) if number % 5]
    tokens = tokenizer_of(seen, size, **settings).tokens
    cased, keep_accents = settings.get("cased", False), settings.get("keep_accents", False)
    theirs = BertWordPieceTokenizer(lowercase=not cased, strip_accents=not cased and not keep_accents)
    theirs.train_from_iterator(seen, vocab_size=size, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    vocabulary = sorted(theirs.get_vocab(), key=theirs.get_vocab().__getitem__)
    ours, reference = (
        coverage(reference_of(vocab, **settings), held_out, vocab.index("[UNK]")) for vocab in (tokens, vocabulary)
    )
    print(
        f"{settings}: pieces per word {ours[0]:.4f} against {reference[0]:.4f}, [UNK] {ours[1]:.5%}, {reference[1]:.5%}"
    )
    assert ours[0] == pytest.approx(reference[0], rel=0.01)
    assert ours[1] <= 1.01 * reference[1] + 1e-5


@pytest.mark.parametrize("language", ["de", "hu"])
def test_a_vocabulary_covers_as_much_as_hugging_faces(language: str, shared_data: Path) -> None:
    path = sorted((shared_data / "languages" / language).glob("*.xz"))[2]
    assert_same_coverage(lines_of(path, 800), 4000, cased=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("settings", [{}, {"cased": True}, {"keep_accents": True}])
@pytest.mark.parametrize("language", ["de", "hu", "tr"])
def test_a_large_vocabulary_covers_as_much_as_hugging_faces(
    language: str, settings: dict[str, Any], shared_data: Path
) -> None:
    paths = sorted((shared_data / "languages" / language).glob("*.xz"))
    lines = list(chain.from_iterable(map(lines_of, paths)))
    if language == "tr":
        lines = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]
    assert_same_coverage(lines, 16_384, **settings)
