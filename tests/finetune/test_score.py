"""Claims about `score.py`: a line per word, whose parts add up to the sentence's score."""

import io
import json
import math
import sys
from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.score import ScoreOptions, main
from finetune.scoring import open_scorer

TEXT = "word1 Word2, good\n\n  bad\tword3. \r\n"


def test_each_word_has_the_sum_of_its_tokens_and_the_words_sum_to_the_sentence(
    stock_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    tokens = open_scorer(str(stock_model), ["discriminator"]).scores(TEXT.splitlines())
    main(ScoreOptions(model=str(stock_model), input=str(tmp_path / "text.txt"), score="discriminator"))
    header, *rows = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert header == ["sentence", "word", "log_likelihood", "surprisal"]
    assert [row[:2] for row in rows] == [["1", "word1"], ["1", "Word2,"], ["1", "good"], ["3", "bad"], ["3", "word3."]]
    first, third = (tokens[line]["discriminator"] for line in (TEXT.splitlines()[0], TEXT.splitlines()[2]))
    expected = [first[0], first[1] + first[2], first[3], third[0], third[1] + third[2]]  # a comma, a point
    assert [float(row[2]) for row in rows] == pytest.approx(expected, abs=1e-6)
    assert [float(row[3]) for row in rows] == pytest.approx([-score / math.log(2) for score in expected], abs=1e-6)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    main(ScoreOptions(model=str(stock_model), input="-", score="discriminator", format="json"))
    one, other = map(json.loads, capsys.readouterr().out.splitlines())
    assert (one["sentence"], other["sentence"], other["text"]) == (1, 3, "  bad\tword3. ")
    assert [word["word"] for word in one["words"]] == ["word1", "Word2,", "good"]
    assert one["log_likelihood"] == pytest.approx(first.sum()) and other["log_likelihood"] == pytest.approx(third.sum())


def test_a_word_without_tokens_scores_0(stock_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("\x01\ngood \x01")
    main(ScoreOptions(model=str(stock_model), input=str(tmp_path / "text.txt"), score="discriminator"))
    _, alone, word, last = capsys.readouterr().out.splitlines()
    assert (alone, last) == tuple(f"{number}\t\x01\t0.000000\t0.000000" for number in (1, 2)) and "good" in word


def test_an_empty_input_gives_no_words(stock_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    main(ScoreOptions(model=str(stock_model), input=str(tmp_path / "empty"), score="discriminator"))
    assert capsys.readouterr().out == "sentence\tword\tlog_likelihood\tsurprisal\n"


def test_a_masked_language_model_has_no_score_by_discriminator(stock_generator: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    with pytest.raises(ConfigError, match=r"score: got discriminator, but .* is a masked language model"):
        main(ScoreOptions(model=str(stock_generator), input=str(tmp_path / "text.txt"), score="discriminator"))
