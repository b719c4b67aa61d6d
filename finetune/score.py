"""Score any sentences with a pre-trained model: the log-likelihood and surprisal of each word, given all others.

    python finetune/score.py exported/base sentences.txt > words.tsv
    echo "The cat sat on the mat." | python finetune/score.py runs/base - --format json

The input has one sentence per line. The output has a line per word, which spaces separate: line number, word,
log-likelihood in nats, surprisal in bits; with `--format json` an object per sentence, which also has their sums. A sum
over a sentence is a pseudo-log-likelihood: a product of the words' probabilities given all others is not a probability
of the sentence.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from electra_sampler.foundation.command_line import POSITIONAL, run_script
from electra_sampler.foundation.config import ConfigError, StrictConfig, explained
from electra_sampler.foundation.files import read_file

if TYPE_CHECKING:
    from finetune.scoring import Scorer


class ModelOptions(StrictConfig):
    """The options that name a model to score with; all that `show.py` has."""

    model: Annotated[str, POSITIONAL]
    """run, exported folder, or name of a stock Hugging Face model"""
    generator: str | None = None
    """generator of the model, if not inside its folder"""
    mask_share: float | None = Field(default=None, gt=0, lt=1)
    """share of tokens masked in training, if the model does not record it"""


class ScoreOptions(ModelOptions):
    """The command line of `score.py`."""

    input: Annotated[str, POSITIONAL]
    """file with one sentence per line; - is standard input"""
    score: Literal["discriminator", "generator", "likelihood"] = "likelihood"
    """log p from both models, log p_G with each token masked in turn, or the discriminator's log P(original)"""
    format: Literal["tsv", "json"] = "tsv"
    """tab-separated values with a header, or one JSON object per line"""


def main(options: ScoreOptions) -> None:
    for line in lines(options):
        print(line)


def lines(options: ScoreOptions) -> Iterator[str]:
    """Yields the lines of the output."""
    from finetune.scoring import open_scorer

    scorer = open_scorer(options.model, (options.score,), options.generator, options.mask_share)
    if options.score == "discriminator" != scorer.kinds[0]:
        raise ConfigError(f"score: got discriminator, but {options.model} is a masked language model; leave it out")
    given = enumerate(read_text(options.input).split("\n"), 1)
    sentences = {number: line.rstrip("\r") for number, line in given if line.strip()}
    scores = scorer.scores(sentences.values()) if sentences else {}
    if options.format == "tsv":
        yield "sentence\tword\tlog_likelihood\tsurprisal"
    for number, sentence in sentences.items():
        words = words_of(scorer, sentence, scores[sentence][scorer.kinds[0]])
        if options.format == "tsv":
            yield from (f"{number}\t{word}\t{score:.6f}\t{bits(score):.6f}" for word, score in words)
        else:
            parts = [{"word": word, "log_likelihood": score, "surprisal": bits(score)} for word, score in words]
            total = sum(score for _, score in words)
            sums = {"sentence": number, "text": sentence, "log_likelihood": total, "surprisal": bits(total)}
            yield json.dumps({**sums, "words": parts}, ensure_ascii=False)


def words_of(scorer: "Scorer", sentence: str, score_T: np.ndarray) -> list[tuple[str, float]]:
    """Returns the words of a sentence, which spaces separate, each with the sum of its tokens' scores."""
    words = [*re.finditer(r"\S+", sentence)]
    ends = [word.end() for word in words]
    spans = scorer.tokenizer(sentence, return_offsets_mapping=True)["offset_mapping"][1:-1]
    place_T = np.searchsorted(ends[:-1], [end for _, end in spans])  # spaces at the end belong to the last word
    sums = np.bincount(place_T, weights=score_T, minlength=len(words))
    return [(word[0], float(total)) for word, total in zip(words, sums, strict=True)]


def read_text(name: str) -> str:
    """Reads a file, or standard input if its name is `-`.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    what = "a file of text in UTF-8, or - for standard input"
    with explained(f"input: cannot read {name}", f"expected {what}", UnicodeDecodeError):
        return (sys.stdin.buffer.read() if name == "-" else read_file(Path(name), "input", what)).decode("utf-8-sig")


def bits(log_likelihood: float) -> float:
    """Returns the surprisal in bits of a log-likelihood in nats."""
    return float(-log_likelihood / np.log(2)) + 0.0  # not -0


if __name__ == "__main__":
    run_script(main)
