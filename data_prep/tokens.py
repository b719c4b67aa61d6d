"""WordPiece: text to ids, and the folder that later stages load.

Hugging Face's `tokenizers` says what the ids are. nanotoken gives the same ids 20 to 30 times faster and does the
work; a sample of every batch goes through both, and a difference ends the build.
"""

import hashlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from foundation.config import ConfigError, StrictRecord
from foundation.files import write_if_other

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # BERT's
LARGEST_VOCABULARY = 1 << 16  # ids are stored as uint16
CONTINUATION = "##"
TOKENIZER_NAME = "tokenizer"  # folder of a tokenizer, in a folder of shards
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")  # the last tells train_vocab that all are there
"""A tokenizer folder; what else lies in it does not travel."""
_CHECKED = 4096  # characters of every batch that both encoders encode: 0.4% of the pipeline's batches of 1 MiB


class SpecialTokens(StrictRecord):
    """Ids of the special tokens."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


class WordPiece:
    """A WordPiece tokenizer and what data preparation must know of its vocabulary.

    Attributes:
        special: ids of the special tokens. vocab_size: number of ids. never_masked: bool [vocab_size]: [PAD],
        [CLS], [SEP], [MASK]. [UNK] is a word and may be masked, as
            in google-research/electra's get_candidates_mask.
        continuation: bool [vocab_size]: `##` pieces.
        slow_because: why Hugging Face's encoder does the work; None where nanotoken does.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # "[MASK]" written in a text is text: were it the token, a sequence's structure could not be read back
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()  # some published tokenizers cut texts at the length of their model
        tokenizer.no_padding()
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
        )
        self._fast, self.slow_because = _fast_encoder(tokenizer)
        self.vocab_size = tokenizer.get_vocab_size()
        self.special = SpecialTokens.model_validate(
            {name: tokenizer.token_to_id(f"[{name.upper()}]") for name in SpecialTokens.model_fields}
        )
        self.never_masked = np.zeros(self.vocab_size, np.bool_)
        self.never_masked[[self.special.pad, self.special.cls, self.special.sep, self.special.mask]] = True
        self.tokens = [tokenizer.id_to_token(number) or "" for number in range(self.vocab_size)]
        self.continuation = np.array([token.startswith(CONTINUATION) for token in self.tokens])

    @classmethod
    def load(cls, folder: Path) -> "WordPiece":
        """The tokenizer of a folder written by `save`.

        Raises:
            ConfigError: it is missing or damaged, or a link leads out of the folder.
        """
        for path in (folder / name for name in FILES):
            if path.resolve().parent != folder.resolve():
                raise ConfigError(f"{path}: a link out of its folder; copy the file in its place")
        try:
            tokenizer = _from_folder(folder)
        except Exception as error:  # the tokenizers library raises bare Exception for every kind of damage
            raise ConfigError(f"{folder}: no tokenizer can be read ({_first_line(error)}); build it again") from None
        _check(tokenizer, str(folder))
        return cls(tokenizer)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the texts laid end to end, uint16, and how many each text has, int64; no special tokens.

        Raises:
            ConfigError: the two encoders disagree.
        """
        if self._fast is None:
            return self._encode_slowly(texts)
        self._check_sample(texts)
        return _encode_fast(self._fast, texts)

    def _encode_slowly(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        pieces = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        ids = np.fromiter(chain.from_iterable(pieces), np.uint16, int(lengths.sum()))
        return ids, lengths

    def _check_sample(self, texts: Sequence[str]) -> None:
        """Compares the encoders on the first characters of the batch."""
        sample, left = [], _CHECKED
        for text in texts:
            sample.append(text[:left])
            left -= len(text)
            if left <= 0:
                break
        if not self._agree(sample):
            culprit = next((text for text in sample if not self._agree([text])), sample[0])
            raise ConfigError(
                f"vocab: nanotoken gives other ids than Hugging Face's tokenizers for {culprit[:80]!r}; "
                "`pip uninstall nanotoken` and run again: slower, but right"
            )

    def _agree(self, texts: Sequence[str]) -> bool:
        pairs = zip(self._encode_slowly(texts), _encode_fast(self._fast, texts), strict=True)
        return all(np.array_equal(slow, fast) for slow, fast in pairs)

    def sha256(self) -> str:
        """Names the tokenizer by what decides its ids: the vocabulary in order and the clean-up of text."""
        settings = json.loads(self._tokenizer.to_str())
        parts = [
            *self.tokens,
            json.dumps([settings["normalizer"], settings["pre_tokenizer"]], sort_keys=True),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def files(self) -> dict[str, bytes]:
        """The files, by name, of a folder that `transformers.AutoTokenizer` loads, with the same ids."""
        names = {f"{name}_token": f"[{name.upper()}]" for name in SpecialTokens.model_fields}
        configuration = _class_settings(json.loads(self._tokenizer.to_str())) | names
        texts = (
            self._tokenizer.to_str(pretty=True),
            json.dumps(configuration, indent=2),
            "\n".join(self.tokens) + "\n",
        )
        return {name: text.encode() for name, text in zip(FILES, texts, strict=True)}

    def save(self, folder: Path) -> None:
        """Writes those files."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files().items():
            write_if_other(folder / name, content)


def open_tokenizer(vocab: str) -> WordPiece:
    """The tokenizer a user names: a `vocab.txt`, a tokenizer folder, or (the only download) a hub name.

    Raises:
        ConfigError: it is not there, is not WordPiece, lacks a special token, or has too many ids for uint16.
    """
    path = Path(vocab)
    try:
        if path.is_file():
            tokenizer = from_vocabulary(_read_vocabulary(path))
        elif path.is_dir():
            tokenizer = _from_folder(path)
        elif (  # `name` or `owner/name`; never a path into a folder that exists here, which is a slip of the pen
            not path.is_absolute()
            and len(path.parts) <= 2
            and path.suffix != ".txt"
            and not os.path.lexists(path.parts[0])
        ):
            logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries are not the user's mistake
            tokenizer = Tokenizer.from_pretrained(vocab)
        else:
            raise ConfigError(f"vocab: {vocab} does not exist; give a vocab.txt, a tokenizer folder or a hub name")
    except ConfigError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for every kind of damage
        raise ConfigError(
            f"vocab: no tokenizer can be read from {vocab} ({_first_line(error)}); give another"
        ) from None
    _check(tokenizer, vocab)
    word_piece = WordPiece(tokenizer)
    if word_piece.slow_because is not None:
        print(f"Hugging Face's encoder is used, 20 times slower: {word_piece.slow_because}", file=sys.stderr)
    return word_piece


def from_vocabulary(tokens: Sequence[str], *, lowercase: bool | None = None) -> Tokenizer:
    """BERT's tokenizer over a vocabulary; text is lower-cased unless a token has a capital letter."""
    words = [token for token in tokens if not (token.startswith("[") and token.endswith("]"))]
    if lowercase is None:
        lowercase = all(word == word.lower() for word in words)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=CONTINUATION))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token in vocabulary])
    return tokenizer


def _class_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """By what `transformers` cleans text as the tokenizer of these settings does: it builds BERT's clean-up anew from
    three names, and leaves any other kind as tokenizer.json has it.
    """
    normalizer, pre_tokenizer = settings["normalizer"] or {}, settings["pre_tokenizer"] or {}
    if pre_tokenizer.get("type") != "BertPreTokenizer" or not normalizer.get("clean_text"):
        inputs = ["input_ids", "token_type_ids", "attention_mask"]  # BERT's, which this class does not suppose
        return {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
    }


def _fast_encoder(tokenizer: Tokenizer) -> tuple[Any, str | None]:
    """The encoder of nanotoken for the same tokenizer, or why there is none."""
    try:
        from nanotoken import WordPieceTokenizer
    except ImportError:
        return None, "nanotoken is not installed"
    settings = json.loads(tokenizer.to_str())
    settings["added_tokens"] = [token for token in settings["added_tokens"] if not token["special"]]  # they are text
    settings["post_processor"] = None  # adds special tokens, which are not asked for
    try:
        return WordPieceTokenizer.from_json(json.dumps(settings)), None
    except ValueError as error:
        return None, f"nanotoken cannot take this tokenizer ({error})"


def _encode_fast(encoder: Any, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    ids, ends = encoder.encode_batch(texts, add_special_tokens=False, parallel=False)  # the workers fill the cores
    return ids.astype(np.uint16), np.diff(ends)


def _from_folder(folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.from_buffer(
            (folder / "tokenizer.json").read_bytes()
        )  # by its name, that would have to be UTF-8
    configuration = folder / "tokenizer_config.json"
    settings = json.loads(configuration.read_text("utf-8")) if configuration.is_file() else {}
    return from_vocabulary(_read_vocabulary(folder / "vocab.txt"), lowercase=settings.get("do_lower_case"))


def _read_vocabulary(path: Path) -> list[str]:
    """One token per line: some of the characters that Unicode ends lines with are tokens."""
    return path.read_text("utf-8").removesuffix("\n").split("\n")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check(tokenizer: Tokenizer, vocab: str) -> None:
    settings = json.loads(tokenizer.to_str())["model"]
    problems = []
    if settings.get("type") != "WordPiece" or settings.get("continuing_subword_prefix") != CONTINUATION:
        problems.append(f"vocab: {vocab} is not a WordPiece tokenizer with ## pieces; give one of BERT's kind")
    missing = [token for token in SPECIAL_TOKENS if tokenizer.token_to_id(token) is None]
    if missing:
        problems.append(f"vocab: {vocab} lacks {', '.join(missing)}; add them to the vocabulary")
    ids = tokenizer.get_vocab().values()
    if ids and max(ids) >= len(ids):
        problems.append(f"vocab: {vocab} repeats a token or skips an id; give each id from 0 on a token of its own")
    if tokenizer.get_vocab_size() > LARGEST_VOCABULARY:
        problems.append(f"vocab: {vocab} has {tokenizer.get_vocab_size()} ids, expected at most {LARGEST_VOCABULARY}")
    if problems:
        raise ConfigError(*problems)
