"""Trains a vocabulary on text, WordPiece or byte-level BPE; writes the tokenizer folder that build_shards takes.

The folder also says how text is normalized: as for BERT's uncased vocabulary by default, or as these options choose.

python data_prep/train_vocab.py --input data/raw --output data/vocab
python data_prep/train_vocab.py --input data/raw --output data/vocab --cased --unicode_form nfc
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from data_prep.defaults import RAW, VOCAB, require_text
from data_prep.formats import Reading
from data_prep.output import locked
from data_prep.reading import sample_documents
from data_prep.sources import find_sources
from data_prep.tokens import CONTINUATION, FILES, LARGEST_VOCABULARY, SPECIAL_TOKENS, SubwordTokenizer, from_vocabulary
from electra_sampler.foundation.command_line import Group, printable, run_script
from electra_sampler.foundation.config import ConfigError, StrictConfig, refuse

_LEAST_COUNT = 2  # of a pair of pieces to be joined; the default of tokenizers' BertWordPieceTokenizer


class VocabularyOptions(StrictConfig):
    """The command line of `train_vocab.py`."""

    takes_any_name = True

    input: tuple[Path, ...] = (RAW,)
    """text files, folders, quoted globs"""
    output: Path = VOCAB
    """tokenizer folder to make"""
    kind: Literal["wordpiece", "bpe"] = "wordpiece"
    """BERT's, or byte-level BPE, which keeps all text as it is and has no unknown characters"""
    size: int = Field(default=30_522, ge=100, le=LARGEST_VOCABULARY)
    """maximum number of tokens; BERT and ELECTRA have 30,522"""
    alphabet: int = Field(default=1000, ge=1, le=LARGEST_VOCABULARY)
    """maximum number of characters; rarer ones become [UNK]"""
    sample_mb: float = Field(default=200.0, gt=0, le=1_000_000)
    """text to train on, in MB, sampled across the files"""
    text_column: str = "text"
    """key or column of the text in JSON lines and Parquet"""
    cased: Annotated[bool, Group("normalization of text")] = False
    """keep capital letters and accents"""
    keep_accents: bool = False
    """keep accents in lower case; Thai and Indic vowels are accents"""
    unicode_form: Literal["none", "nfc", "nfd", "nfkc", "nfkd"] = "none"
    """Unicode normalization; build_shards applies nfc to all text"""
    join_cjk: bool = False
    """Chinese characters form words; by default each is a word"""

    @property
    def normalizer(self) -> normalizers.Normalizer:
        """The normalization that the tokenizer folder records."""
        bert = normalizers.BertNormalizer(
            lowercase=not self.cased,
            strip_accents=False if self.keep_accents and not self.cased else None,  # None: with the case
            handle_chinese_chars=not self.join_cjk,
        )
        return normalizers.Sequence([self.form, bert]) if self.form else bert

    @property
    def form(self) -> normalizers.Normalizer | None:
        """The Unicode normalization form, if one is asked for."""
        return None if self.unicode_form == "none" else getattr(normalizers, self.unicode_form.upper())()


def main(options: VocabularyOptions) -> int:
    """Trains the vocabulary and writes the tokenizer folder; returns the exit code."""
    refuse(
        f"output: {options.output} already has a {name}; remove that file or choose another folder"
        for name in FILES
        if (options.output / name).exists()
    )
    refuse(
        f"{name}: has no effect on --kind bpe, which keeps all text as it is; leave it out"
        for name in ("alphabet", "cased", "keep_accents", "join_cjk")
        if options.kind == "bpe" and name in options.model_fields_set
    )
    require_text(options.input)
    sources, reading = find_sources(options.input), Reading(text_column=options.text_column)
    read_texts = partial(sample_documents, sources, int(options.sample_mb * 1e6), reading)
    if not any(map(str.strip, read_texts())):
        raise ConfigError(
            f"input: a sample of {' '.join(map(str, options.input))} has no text; give files that contain text"
        )
    with locked(options.output):
        if options.kind == "bpe":
            tokenizer = train_bpe(read_texts(), options)
        else:
            tokenizer = from_vocabulary(train_vocabulary(read_texts, options), options.normalizer)
        SubwordTokenizer(tokenizer).save(options.output)
    print(f"{printable(str(options.output))}: {tokenizer.get_vocab_size():,} tokens")
    return 0


def train_bpe(texts: Iterator[str], options: VocabularyOptions) -> Tokenizer:
    """Trains a byte-level BPE, deterministically.

    First come the special tokens, then the bytes, then merged pairs. A word includes the space before it.

    Raises:
        ConfigError: `size` is too small for special tokens and bytes.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if (least := len(SPECIAL_TOKENS) + len(alphabet)) > options.size:
        raise ConfigError(f"size: got {options.size}, expected at least {least}: 256 bytes and the special tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    if options.form:
        tokenizer.normalizer = options.form
    trainer = trainers.BpeTrainer(
        vocab_size=options.size,
        min_frequency=_LEAST_COUNT,
        special_tokens=[*SPECIAL_TOKENS],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_vocabulary(read_texts: Callable[[], Iterator[str]], options: VocabularyOptions) -> list[str]:
    """Trains a vocabulary: special tokens, characters, then learned pieces, longest last. Deterministic.

    `tokenizers` numbers the characters in hash-table order, which differs between runs, and breaks ties between equally
    frequent pairs by these numbers. Passing the sorted characters as special tokens fixes their order.

    Raises:
        ConfigError: the special tokens and characters already exceed `size`.
    """
    tokenizer = from_vocabulary(SPECIAL_TOKENS, options.normalizer)
    alphabet = _alphabet(read_texts(), tokenizer, options.alphabet)
    fixed, size = [*SPECIAL_TOKENS, *alphabet], options.size
    if len(fixed) > size:
        raise ConfigError(
            f"size: got {size}, expected at least {len(fixed)}: characters take {len(alphabet)} tokens; raise it, "
            "or lower --alphabet"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=_LEAST_COUNT,
        special_tokens=fixed,
        limit_alphabet=0,
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    tokenizer.train_from_iterator(read_texts(), trainer)
    learned = set(tokenizer.get_vocab()) - set(fixed)
    return [*fixed, *sorted(learned, key=lambda token: (len(token.removeprefix(CONTINUATION)), token))]


def _alphabet(texts: Iterator[str], tokenizer: Tokenizer, most: int) -> list[str]:
    """Returns the most common characters, and the `##` forms of those that can occur inside a word, each sorted."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenizer.normalizer.normalize_str(text))
    # sorted before truncation, so that ties do not depend on the order of the text
    commonest = sorted(counts, key=lambda character: (-counts[character], character))[:most]
    characters = sorted(character for character in commonest if not character.isspace())
    # excludes punctuation and Chinese, which are split off the letter's word
    inside = [
        CONTINUATION + character
        for character in characters
        if len(tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(f"a{character}"))) == 1
    ]
    return characters + inside


if __name__ == "__main__":
    run_script(main)
