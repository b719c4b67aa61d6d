"""WordPiece: text to ids through Hugging Face `tokenizers`, and the folder that later stages load."""

import hashlib
import json
import logging
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from data_prep.config import ConfigError, StrictConfig
from data_prep.shards import write_atomically

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # BERT's
LARGEST_VOCABULARY = 1 << 16  # ids are stored as uint16
CONTINUATION = "##"


class SpecialTokens(StrictConfig):
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
        [CLS], [SEP], [MASK]. [UNK] stands for a word and may be masked, as
            in google-research/electra's get_candidates_mask.
        continuation: bool [vocab_size]: `##` pieces.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # "[MASK]" written in a text is text: were it the token, a sequence's structure could not be read back
        tokenizer.encode_special_tokens = True
        self.vocab_size = tokenizer.get_vocab_size()
        self.special = SpecialTokens.from_values(
            {name: tokenizer.token_to_id(f"[{name.upper()}]") for name in SpecialTokens.model_fields}
        )
        self.never_masked = np.zeros(self.vocab_size, np.bool_)
        self.never_masked[[self.special.pad, self.special.cls, self.special.sep, self.special.mask]] = True
        self.tokens = [tokenizer.id_to_token(number) or "" for number in range(self.vocab_size)]
        self.continuation = np.array([token.startswith(CONTINUATION) for token in self.tokens])

    @classmethod
    def load(cls, folder: Path) -> "WordPiece":
        """The tokenizer of a folder written by `save`."""
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the texts laid end to end, uint16, and how many each text has, int64; no special tokens."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        pieces = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        ids = np.fromiter(chain.from_iterable(pieces), np.uint16, int(lengths.sum()))
        return ids, lengths

    def sha256(self) -> str:
        """Names the tokenizer by what decides its ids: the vocabulary in order and the clean-up of text."""
        settings = json.loads(self._tokenizer.to_str())
        parts = [
            *self.tokens,
            json.dumps([settings["normalizer"], settings["pre_tokenizer"]], sort_keys=True),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Writes a folder that `transformers.AutoTokenizer` loads."""
        folder.mkdir(parents=True, exist_ok=True)
        settings = json.loads(self._tokenizer.to_str())
        names = dict(
            zip(
                ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"),
                SPECIAL_TOKENS,
                strict=True,
            )
        )
        configuration = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": bool((settings["normalizer"] or {}).get("lowercase", False)),
            **names,
        }
        files = {
            "vocab.txt": "\n".join(self.tokens) + "\n",
            "tokenizer.json": self._tokenizer.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(configuration, indent=2),
        }
        for name, content in files.items():
            write_atomically(folder / name, content.encode())


def open_tokenizer(vocab: str) -> WordPiece:
    """The tokenizer a user names: a `vocab.txt`, a tokenizer folder, or (the only download) a hub name.

    Raises:
        ConfigError: it is not there, is not WordPiece, lacks a special token, or has too many ids for uint16.
    """
    path = Path(vocab)
    try:
        if path.is_file():
            tokenizer = from_vocabulary(path.read_text("utf-8").splitlines())
        elif path.is_dir():
            tokenizer = _from_folder(path)
        elif _may_be_hub_name(path):
            logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries are not the user's mistake
            tokenizer = Tokenizer.from_pretrained(vocab)
        else:
            raise ConfigError(f"vocab: {vocab} does not exist; give a vocab.txt, a tokenizer folder or a hub name")
    except ConfigError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for every kind of damage
        reason = str(error).splitlines()[0]
        raise ConfigError(f"vocab: no tokenizer can be read from {vocab} ({reason}); give another") from None
    _check(tokenizer, vocab)
    return WordPiece(tokenizer)


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
    present = [token for token in SPECIAL_TOKENS if token in vocabulary]
    tokenizer.add_special_tokens(present)
    if {"[CLS]", "[SEP]"} <= vocabulary.keys():
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
        )
    return tokenizer


def _from_folder(folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    configuration = folder / "tokenizer_config.json"
    settings = json.loads(configuration.read_text("utf-8")) if configuration.is_file() else {}
    tokens = (folder / "vocab.txt").read_text("utf-8").splitlines()
    return from_vocabulary(tokens, lowercase=settings.get("do_lower_case"))


def _may_be_hub_name(path: Path) -> bool:
    """`name` or `owner/name`; never a path into a folder that exists here, which is a slip of the pen."""
    return (
        not path.is_absolute() and len(path.parts) <= 2 and path.suffix != ".txt" and not Path(path.parts[0]).exists()
    )


def _check(tokenizer: Tokenizer, vocab: str) -> None:
    settings = json.loads(tokenizer.to_str())["model"]
    problems = []
    if settings.get("type") != "WordPiece" or settings.get("continuing_subword_prefix") != CONTINUATION:
        problems.append(f"vocab: {vocab} is not a WordPiece tokenizer with ## pieces; give one of BERT's kind")
    missing = [token for token in SPECIAL_TOKENS if tokenizer.token_to_id(token) is None]
    if missing:
        problems.append(f"vocab: {vocab} lacks {', '.join(missing)}; add them to the vocabulary")
    if tokenizer.get_vocab_size() > LARGEST_VOCABULARY:
        problems.append(f"vocab: {vocab} has {tokenizer.get_vocab_size()} ids, expected at most {LARGEST_VOCABULARY}")
    if problems:
        raise ConfigError(*problems)
