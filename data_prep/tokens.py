"""WordPiece or byte-level BPE: encodes text into ids, and writes the tokenizer folder that later stages load.

Hugging Face's `tokenizers` is the reference. For WordPiece, nanotoken computes the same ids 20 to 30 times faster and
is used if possible; both encode a sample of every batch, and a difference stops the build.
"""

import hashlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import regex
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from data_prep.curation.words import IN_WORDS, WITHOUT_SPACES
from electra_sampler.foundation.config import ConfigError, StrictRecord, explained, few, refuse
from electra_sampler.foundation.files import require_file_or_folder, write_if_other

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # BERT's
LARGEST_VOCABULARY = 1 << 16  # ids are stored as uint16
CONTINUATION = "##"
SPACE = "\u0120"  # a space in the spelling of a byte-level BPE
_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
_BYTES = dict(zip(_ALPHABET, sorted(range(256), key=lambda byte: chr(byte) not in _ALPHABET), strict=True))
"""The byte that each character in the spelling of a byte-level BPE stands for: itself if it is printable."""
_INSIDE_WORD = regex.compile(
    rf"(?V1)[{IN_WORDS}--[{WITHOUT_SPACES}--\p{{M}}]]"
    r"|(?!\udce0[\udcb8-\udcbb]|\udce1[\udc80\udc81\udc9e\udc9f]|[\udce3-\udce9])[\udc80-\udcff]"
)
"""Text inside a word. Parts of characters are surrogates; those excluded begin Thai, Lao, Burmese, Khmer or Chinese."""
TOKENIZER_NAME = "tokenizer"  # name of the tokenizer folder inside a shard folder
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")  # vocab.txt last: with it the folder is complete
"""The files of a tokenizer folder; others in it are not copied."""
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Files of settings and special tokens that a tokenizer folder of others may have."""
_CACHED_TEXT = 8_000_000  # characters after which nanotoken's word cache is cleared: a larger one is no faster
_CHECKED, _LONGEST_CHECKED = 32, 4096  # texts per batch encoded by both encoders, and characters of each


class SpecialTokens(StrictRecord):
    """The ids of a vocabulary's special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


BERTS = {name: f"[{name.upper()}]" for name in SpecialTokens.model_fields}
"""BERT's special tokens, by the names of `SpecialTokens`."""
Marked = tuple[Tokenizer, Mapping[str, str]]
"""A tokenizer, and its special tokens by these names."""


class SubwordTokenizer:
    """A tokenizer and the properties of its vocabulary that data preparation needs.

    A byte-level BPE (GPT-2, ModernBERT) is changed to encode each text with a space before its first word, as if it
    followed others.

    Attributes:
        special: ids of the special tokens. vocab_size: number of ids. tokens: the vocabulary.
        spelled: the vocabulary in the spelling of `pieces`: added tokens of a BPE, which are stored as text, as bytes.
        shown: the vocabulary to show, as WordPieces: readable, with `##` before what continues a word.
        never_masked: bool [vocab_size]: [PAD], [CLS], [SEP], [MASK]. [UNK] is a word and may be masked, as
            in google-research/electra's get_candidates_mask.
        continuation: bool [vocab_size]: pieces that continue a word: `##` pieces, or those of a BPE that begin inside.
        slow_because: the reason why WordPieces come from Hugging Face's encoder; None if nanotoken is used.
    """

    def __init__(self, tokenizer: Tokenizer, marks: Mapping[str, str] = BERTS) -> None:
        self._tokenizer, self._marks = tokenizer, marks
        # "[MASK]" in the input is ordinary text: as a special token it would corrupt the sequence structure
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()  # some published tokenizers truncate text to their model's length
        tokenizer.no_padding()
        tokenizer.post_processor = _template(tokenizer, marks)
        settings = json.loads(tokenizer.to_str())
        self._fast, self.slow_because = _fast_encoder(settings)
        self._cached = 0
        self.vocab_size = tokenizer.get_vocab_size()
        self.special = SpecialTokens.model_validate(
            {name: tokenizer.token_to_id(token) for name, token in marks.items()}
        )
        self.never_masked = np.isin(
            np.arange(self.vocab_size), [number for name, number in self.special if name != "unk"]
        )
        self.tokens = [tokenizer.id_to_token(number) or "" for number in range(self.vocab_size)]
        self.continuation = np.array([token.startswith(CONTINUATION) for token in self.tokens])
        self.shown = self.spelled = self.tokens
        if byte_level := _byte_level(settings):
            self._read_bytes(settings["added_tokens"])
            if not byte_level["add_prefix_space"] and "Prepend" not in str(settings["normalizer"]):
                self._prepend_space(settings["added_tokens"])

    def _read_bytes(self, added: list[dict[str, Any]]) -> None:
        """Sets the properties of a byte-level BPE's vocabulary that its bytes decide."""
        step = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        spelled = {one["id"]: "".join(part for part, _ in step.pre_tokenize_str(one["content"])) for one in added}
        self.spelled = [spelled.get(number, token) for number, token in enumerate(self.tokens)]
        text = [
            bytes(_BYTES.get(character, 0) for character in one).decode("utf-8", "surrogateescape")
            for one in self.spelled
        ]
        self.continuation = np.array([_INSIDE_WORD.match(one) is not None for one in text]) & ~self.never_masked
        self.shown = [
            CONTINUATION * bool(joined)
            + (one.encode("utf-8", "surrogateescape").decode("utf-8", "replace").strip() or token)
            for one, token, joined in zip(text, self.tokens, self.continuation, strict=True)
        ]

    def _prepend_space(self, added: list[dict[str, Any]]) -> None:
        """Makes a byte-level BPE encode a text's first word as it does the others, with the space before them."""
        tokens = (regex.escape(one["content"]) for one in added if not one["special"])
        self._tokenizer.normalizer = normalizers.Sequence(
            [
                self._tokenizer.normalizer or normalizers.Sequence([]),
                normalizers.Prepend(" "),
                # the library normalizes the added tokens, too, which must stay as they are
                normalizers.Replace(Regex(rf"\A (?=(?:{'|'.join(tokens)})\z)"), ""),
            ]
        )

    @classmethod
    def load(cls, folder: Path) -> "SubwordTokenizer":
        """Loads the tokenizer from a folder written by `save`.

        Raises:
            ConfigError: the folder is missing or damaged, or a link leads out of it.
        """
        refuse(
            f"{path}: links to a file outside its folder; replace it with a copy"
            for path in (folder / name for name in FILES)
            if path.resolve().parent != folder.resolve()
        )
        return cls(*_checked(str(folder), *read_folder(folder, "vocab")))

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encodes texts; returns their ids, concatenated, uint16, and the number per text, int64; no special tokens.

        Raises:
            ConfigError: the two encoders disagree.
        """
        if self._fast is None:
            return self._encode_slowly(texts)
        for sample in ([text[:_LONGEST_CHECKED]] for text in texts[:_CHECKED]):
            if not all(map(np.array_equal, self._encode_slowly(sample), _encode_fast(self._fast, sample))):
                raise ConfigError(
                    f"vocab: nanotoken and Hugging Face's tokenizers give different ids for {sample[0][:80]!r}; "
                    "`pip uninstall nanotoken` and run again: slower, but correct"
                )
        self._cached += sum(map(len, texts))
        if self._cached > _CACHED_TEXT:
            self._fast.clear_cache()
            self._cached = 0
        return _encode_fast(self._fast, texts)

    def _encode_slowly(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        pieces = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        return np.fromiter(chain.from_iterable(pieces), np.uint16, int(lengths.sum())), lengths

    def pieces(self, spelled: str) -> list[int]:
        """Returns the ids of the pieces that this tokenizer makes of another vocabulary's token, `spelled` as there."""
        return [piece.id for piece in self._tokenizer.model.tokenize(spelled)] or [self.special.unk]

    def normalized(self, text: str) -> str:
        """Returns a text after the tokenizer's normalization of case, accents and Unicode form."""
        return str(self._tokenizer.normalizer.normalize_str(text)) if self._tokenizer.normalizer else text

    def sha256(self) -> str:
        """Checksum of everything that determines the ids: the ordered vocabulary and the text normalization."""
        settings = json.loads(self._tokenizer.to_str())
        parts = [
            *self.tokens,
            json.dumps([settings["normalizer"], settings["pre_tokenizer"]], sort_keys=True),
            *(json.dumps(merge) for merge in settings["model"].get("merges", ())),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def files(self, **settings: Any) -> dict[str, bytes]:
        """The content of the tokenizer's files by name, with more `settings`; loaded as `AutoTokenizer`, they give the
        same ids.
        """
        names = {f"{name}_token": token for name, token in self._marks.items()}
        configuration = class_settings(self._tokenizer) | names | settings
        texts = (
            self._tokenizer.to_str(pretty=True),
            json.dumps(configuration, indent=2),
            "\n".join(self.tokens) + "\n",
        )
        return {name: text.encode() for name, text in zip(FILES, texts, strict=True)}

    def save(self, folder: Path, **settings: Any) -> None:
        """Writes the `files` into a folder, leaving unchanged ones untouched."""
        for name, content in self.files(**settings).items():
            write_if_other(folder / name, content)


def open_tokenizer(vocab: str) -> SubwordTokenizer:
    """Opens the tokenizer that the user names: a `vocab.txt` or `tokenizer.json`, a tokenizer folder or a hub name.

    Raises:
        ConfigError: it does not exist, is of another kind, lacks a special token, or has too many ids for uint16.
    """
    # tokenizers raises bare Exceptions
    with explained(f"vocab: no tokenizer can be read from {vocab}", "give another", Exception):
        named = _named(vocab)
    tokenizer = SubwordTokenizer(*_checked(vocab, *named))
    if tokenizer.slow_because is not None:
        print(f"using Hugging Face's encoder, which is 20 times slower: {tokenizer.slow_because}", file=sys.stderr)
    return tokenizer


def _named(vocab: str) -> Marked:
    path = Path(vocab)
    if path.is_dir() or (path.is_file() and path.name in FILES[:2]):
        return _in_folder(path if path.is_dir() else path.parent, "vocab")
    if path.exists():
        tokens = _read_vocabulary(path, "vocab")
        if any((path.parent / name).is_file() for name in FILES[:2]):
            tokenizer, marks = _in_folder(path.parent, "vocab")
            if tokenizer.get_vocab() == {token: number for number, token in enumerate(tokens)}:
                return tokenizer, marks
        return from_vocabulary(tokens), BERTS  # settings beside it, if any, belong to another vocabulary
    # `name` or `owner/name`; never a path whose first folder exists here, which is a typing error
    if path.is_absolute() or len(path.parts) > 2 or path.suffix == ".txt" or os.path.lexists(path.parts[0]):
        raise ConfigError(
            f"vocab: {vocab} does not exist; give a vocab.txt, a tokenizer folder or the name of a model on the hub"
        )
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # hides its messages about retries
    from huggingface_hub import snapshot_download

    return _in_folder(Path(snapshot_download(vocab, allow_patterns=[*FILES, *SETTINGS])), "vocab")


def _template(tokenizer: Tokenizer, marks: Mapping[str, str]) -> processors.TemplateProcessing:
    """Returns the step that puts BERT's special tokens around a text or a pair of texts."""
    return processors.TemplateProcessing(
        single="{cls} $A {sep}".format(**marks),
        pair="{cls} $A {sep} $B:1 {sep}:1".format(**marks),
        special_tokens=[(marks[name], tokenizer.token_to_id(marks[name])) for name in ("cls", "sep")],
    )


def from_vocabulary(tokens: Sequence[str], normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    """Returns BERT's tokenizer for a vocabulary; by default it lower-cases unless some token has a capital letter.

    Raises:
        ValueError: the tokens are those of a byte-level BPE.
    """
    if any(regex.match(f"{SPACE}.", token) for token in tokens) and not any(
        regex.match(r"##\w", token) for token in tokens
    ):
        raise ValueError("a byte-level BPE's tokens without its merges: give the folder of its tokenizer.json")
    if normalizer is None:
        words = [token for token in tokens if not (token.startswith("[") and token.endswith("]"))]
        normalizer = normalizers.BertNormalizer(lowercase=all(word == word.lower() for word in words))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=CONTINUATION))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token in vocabulary])
    return tokenizer


def class_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the settings with which `transformers` normalizes text exactly as this tokenizer does.

    `transformers` rebuilds BERT's normalizer from three settings, and reads any other one from tokenizer.json.
    """
    settings = json.loads(tokenizer.to_str())
    normalizer, pre_tokenizer = settings["normalizer"] or {}, settings["pre_tokenizer"] or {}
    if pre_tokenizer.get("type") != "BertPreTokenizer" or not normalizer.get("clean_text"):
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],  # BERT's; no default of this class
        }
    return {"tokenizer_class": "BertTokenizer", **{name: normalizer[key] for name, key in _NORMALIZES.items()}}


def _byte_level(settings: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the byte-level step of a BPE's pre-tokenizer, from its tokenizer.json; None for another tokenizer."""
    chain = settings["pre_tokenizer"] or {}
    steps = [step for step in chain.get("pretokenizers", [chain]) if step.get("type") == "ByteLevel"]
    return steps[0] if steps and settings["model"].get("type") == "BPE" else None


def _fast_encoder(settings: dict[str, Any]) -> tuple[Any, str | None]:
    """Returns nanotoken's equivalent of the tokenizer with these settings; None and the reason if it cannot be used.

    nanotoken has no byte-level BPE; that is not reported.
    """
    if _byte_level(settings) is not None:
        return None, None
    try:
        from nanotoken import WordPieceTokenizer
    except ImportError:
        return None, "nanotoken is not installed"
    # special tokens in the input are ordinary text, and none are added
    plain = {"added_tokens": [one for one in settings["added_tokens"] if not one["special"]], "post_processor": None}
    try:
        return WordPieceTokenizer.from_json(json.dumps(settings | plain)), None
    except ValueError as error:
        return None, f"nanotoken does not support this tokenizer ({error})"


def _encode_fast(encoder: Any, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    ids, ends = encoder.encode_batch(texts, add_special_tokens=False, parallel=False)  # workers use all cores
    return ids.astype(np.uint16), np.diff(ends)


_NORMALIZES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Settings in a tokenizer_config.json, each with its name in the normalizer of a tokenizer.json."""
_OF_BERTS_KIND = regex.compile("(Bert|Electra|DistilBert|MobileBert|ConvBert|MPNet)Tokenizer(Fast)?|None")
"""Classes of `transformers` that a vocab.txt defines."""


def read_folder(folder: Path, option: str) -> Marked:
    """Returns the tokenizer in a folder, and its special tokens by name.

    It gives the ids of `AutoTokenizer`. In a folder that does not say whether to lower-case, its own tokenizer.json or
    tokens decide, while `AutoTokenizer` lower-cases.

    Raises:
        ConfigError: it cannot be read, lacks a special token, or a file or setting of the folder decides ids otherwise;
            the message names the `option` that gave the folder.
    """
    with explained(f"{option}: no tokenizer can be read from {folder}", "give another", Exception):
        tokenizer, marks = _in_folder(folder, option)
    refuse(_lacks(f"{option}: {folder}", tokenizer, marks))
    return tokenizer, marks


def _in_folder(folder: Path, option: str) -> Marked:
    settings, special, added = (
        json.loads((folder / name).read_text("utf-8")) if (folder / name).is_file() else {} for name in SETTINGS
    )
    named = special | settings
    marks = {name: _content(named.get(f"{name}_token")) or token for name, token in BERTS.items()}
    is_whole = (folder / "tokenizer.json").is_file()
    tokenizer = (_from_layout if is_whole else _from_words)(folder, settings, marks, option)
    extra = [*_added_tokens(named, added)]
    problems = [
        f"{option}: {source} of {folder} adds {token!r}, which the vocabulary lacks or has at another place; save"
        " the tokenizer as one tokenizer.json: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        for source, token, number in extra
        if (found := tokenizer.token_to_id(token)) is None or number not in (None, found)
    ]
    refuse(few(problems, "such tokens"))
    if not is_whole:
        others = dict.fromkeys(token for _, token, _ in extra if token not in marks.values())
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in others])
    return tokenizer, marks


def _from_layout(folder: Path, settings: dict[str, Any], marks: Mapping[str, str], option: str) -> Tokenizer:
    """Returns the tokenizer of a tokenizer.json. Special tokens that have no name keep their one id in a text."""
    # not by path, which would have to be UTF-8
    layout = json.loads(Tokenizer.from_buffer((folder / "tokenizer.json").read_bytes()).to_str())
    normalizer = layout["normalizer"] or {}
    both = _NORMALIZES.items() if normalizer.get("type") == "BertNormalizer" else ()
    refuse(  # transformers follows the one or the other, by class and version
        f"{option}: {folder / 'tokenizer_config.json'} has {name} {json.dumps(settings[name])}, but tokenizer.json has"
        f" {key} {json.dumps(normalizer[key])}; correct one of them"
        for name, key in both
        if settings.get(name) not in (None, normalizer["lowercase"] if normalizer[key] is None else normalizer[key])
    )
    for one in layout["added_tokens"]:
        if one["special"] and one["content"] not in marks.values():
            one |= {"special": False, "normalized": one["normalized"] or _byte_level(layout) is not None}
    return Tokenizer.from_str(json.dumps(layout))


def _from_words(folder: Path, settings: dict[str, Any], marks: Mapping[str, str], option: str) -> Tokenizer:
    """Returns the tokenizer of a vocab.txt, which its settings complete."""
    kind = str(settings.get("tokenizer_class"))
    if not _OF_BERTS_KIND.fullmatch(kind):
        raise ConfigError(
            f"{option}: {folder / 'tokenizer_config.json'} has tokenizer_class {kind!r}, which a vocab.txt alone does"
            " not define; give a tokenizer with a tokenizer.json"
        )
    normalizer = None
    if "do_lower_case" in settings:
        chosen = {key: settings[name] for name, key in _NORMALIZES.items() if name in settings}
        normalizer = normalizers.BertNormalizer(**chosen)
    tokenizer = from_vocabulary(_read_vocabulary(folder / "vocab.txt", option), normalizer)
    known = [token for token in marks.values() if tokenizer.token_to_id(token) is not None]
    tokenizer.add_special_tokens(known)
    if len(known) == len(marks):
        tokenizer.post_processor = _template(tokenizer, marks)
    return tokenizer


def _added_tokens(named: Mapping[str, Any], added: Mapping[str, int]) -> Iterator[tuple[str, str, int | None]]:
    """Yields what a folder adds to its vocabulary: the file or setting that does, the token, and its id if given."""
    yield from (("added_tokens.json", token, number) for token, number in added.items())
    described = named.get("added_tokens_decoder", {}).items()
    yield from (("tokenizer_config.json", one["content"], int(number)) for number, one in described)
    for key in ("additional_special_tokens", "extra_special_tokens"):
        tokens = named.get(key) or []
        yield from ((key, _content(one), None) for one in (tokens.values() if isinstance(tokens, dict) else tokens))


def _content(token: Any) -> Any:
    """Returns the text of a token, which settings name or describe."""
    return token["content"] if isinstance(token, dict) else token


def _read_vocabulary(path: Path, option: str) -> list[str]:
    """Reads one token per line, split at line feeds only, because some of Unicode's line separators are tokens."""
    require_file_or_folder(path, option)
    return path.read_text("utf-8-sig").removesuffix("\n").split("\n")


def _lacks(source: str, tokenizer: Tokenizer, marks: Mapping[str, str]) -> Iterator[str]:
    """Yields a problem if the vocabulary lacks a special token."""
    if missing := [token for token in marks.values() if tokenizer.token_to_id(token) is None]:
        yield f"{source} lacks {', '.join(missing)}; add them to the vocabulary"


def _checked(vocab: str, tokenizer: Tokenizer, marks: Mapping[str, str]) -> Marked:
    """Returns a tokenizer with its special tokens after checking that shards can hold its ids.

    Raises:
        ConfigError: it is of another kind, lacks a special token, or has too many ids for uint16.
    """
    settings = json.loads(tokenizer.to_str())
    model, problems = settings["model"], []
    word_piece = model.get("type") == "WordPiece" and model.get("continuing_subword_prefix") == CONTINUATION
    if not word_piece and _byte_level(settings) is None:
        problems.append(
            f"vocab: {vocab} is neither WordPiece with ## pieces nor a byte-level BPE; give one of BERT's kind or of"
            " GPT-2's"
        )
    problems += _lacks(f"vocab: {vocab}", tokenizer, marks)
    if not (_byte_level(settings) or {"add_prefix_space": True})["add_prefix_space"]:
        problems += [  # each text between such tokens would begin with a space of its own
            f"vocab: {vocab} has the added token {one['content']!r} with normalized false; save it with true"
            for one in settings["added_tokens"]
            if not one["special"] and not one["normalized"]
        ]
    ids = tokenizer.get_vocab().values()
    if ids and max(ids) >= len(ids):
        problems.append(f"vocab: {vocab} repeats a token or skips an id; give every id, from 0 on, its own token")
    if tokenizer.get_vocab_size() > LARGEST_VOCABULARY:
        problems.append(f"vocab: {vocab} has {tokenizer.get_vocab_size()} ids, expected at most {LARGEST_VOCABULARY}")
    refuse(problems)
    return tokenizer, marks
