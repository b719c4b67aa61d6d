"""Claims about learning a vocabulary."""

import json
from pathlib import Path

import pytest

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build
from data_prep.inspect_shards import InspectOptions, read_rows
from data_prep.inspect_shards import main as inspect
from data_prep.manifest import load_manifest
from data_prep.tokens import SPECIAL_TOKENS, SubwordTokenizer, from_vocabulary, open_tokenizer
from data_prep.train_vocab import VocabularyOptions, main, train_vocabulary
from electra_sampler.foundation.command_line import run_command
from electra_sampler.foundation.config import ConfigError
from tests.data_prep.conftest import again, contents, limit_file_size, run_script

TEXTS = ["The lowest newer wider news, the widest lower news. Ünïcode 漢字!"] * 20


def test_the_vocabulary_begins_with_the_special_tokens_and_covers_the_text(tmp_path: Path) -> None:
    tokens = train_vocabulary(lambda: iter(TEXTS), VocabularyOptions(size=120))
    assert tuple(tokens[:5]) == SPECIAL_TOKENS
    assert len(tokens) == len(set(tokens))
    assert {"the", "news", "漢", "u", "##d", "."} <= set(tokens)
    assert not {"T", "##漢", "##.", " "} & set(tokens)


def test_the_alphabet_is_cut_at_the_asked_number_of_characters() -> None:
    tokens = train_vocabulary(lambda: iter(TEXTS), VocabularyOptions(size=120, alphabet=5))
    assert {"e", "w", "t", "s", "n"} >= {token for token in tokens if len(token) == 1}


def test_by_default_text_is_normalized_as_for_berts_uncased_vocabulary() -> None:
    made = from_vocabulary(SPECIAL_TOKENS, VocabularyOptions().normalizer)
    expected = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    assert json.loads(made.to_str())["normalizer"] == {"type": "BertNormalizer"} | expected


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_every_run_learns_the_same_vocabulary(kind: str, corpus: Path, tmp_path: Path) -> None:
    """The hash table in tokenizers has a new seed in every process."""
    for name in ("one", "two", "three"):
        asked = ("--size", 300, "--kind", kind)
        done = run_script("data_prep/train_vocab.py", "--input", corpus, "--output", tmp_path / name, *asked)
        assert done.returncode == 0, done.stderr
    assert len({(tmp_path / name / "tokenizer.json").read_bytes() for name in ("one", "two", "three")}) == 1


def test_the_folder_is_a_tokenizer_that_knows_its_text(corpus: Path, tmp_path: Path) -> None:
    main(VocabularyOptions(input=(corpus,), output=tmp_path / "vocab", size=300))
    tokenizer = open_tokenizer(str(tmp_path / "vocab"))
    ids, _ = tokenizer.encode([(corpus / "part-0.txt").read_text()])
    assert tokenizer.vocab_size <= 300
    assert not (ids == tokenizer.special.unk).any()


def test_a_byte_level_bpe_masks_whole_words_of_text_as_it_is(
    options: BuildOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(f"{text} Naïve ☃ {number}.\n" for number, text in enumerate(TEXTS)))
    main(VocabularyOptions(input=(tmp_path / "text.txt",), output=tmp_path / "vocab", size=290, kind="bpe"))
    case = again(options, tmp_path / "shards", input=(tmp_path / "text.txt",), vocab=str(tmp_path / "vocab"))
    assert build(case.model_copy(update={"sentences": "line", "held_out": 0.0})) == 0
    capsys.readouterr()
    assert inspect(InspectOptions(folder=case.output, verify=True, show=3, workers=1)) == 0
    shown = capsys.readouterr().out
    assert "The lowest newer wider news" in shown.replace("[", "").replace("]", "")
    assert "unknown words   0.0000%" in shown
    folder, manifest = SubwordTokenizer.load(case.output / "tokenizer"), load_manifest(case.output)
    for rows in read_rows(case.output, manifest.shards[0], manifest, 8):
        for ids, masked, length in zip(rows.ids, rows.masked[:, 0], rows.lengths, strict=True):
            joined = folder.continuation[ids[1:length]]
            cut = (masked[1:length] != masked[: length - 1])[joined].sum()
            assert joined.any() and cut <= 2, "besides the two ends of the window, a mask cuts no word"


@pytest.mark.parametrize(
    ("option", "value"), [("alphabet", 500), ("cased", True), ("join_cjk", True), ("keep_accents", True)]
)
def test_an_option_without_effect_on_a_byte_level_bpe_is_refused(
    option: str, value: int, corpus: Path, tmp_path: Path
) -> None:
    values = {"input": (corpus,), "output": tmp_path / "vocab", "kind": "bpe", option: value}
    with pytest.raises(ConfigError, match=f"{option}: has no effect on --kind bpe"):
        main(VocabularyOptions.from_values(values))
    assert not (tmp_path / "vocab").exists()


def test_a_size_below_the_alphabet_is_refused() -> None:
    texts = ["".join(chr(0x3B1 + number) for number in range(24)) + "abcdefghijklmnopqrstuvwxyz" * 3]
    with pytest.raises(ConfigError, match="expected at least"):
        train_vocabulary(lambda: iter(texts), VocabularyOptions(size=100))


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json", "tokenizer_config.json"])
def test_an_existing_vocabulary_is_not_overwritten(corpus: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"already has a {name}"):
        main(VocabularyOptions(input=(corpus,), output=tmp_path))
    assert contents(tmp_path) == {name: b"mine"}


def test_an_output_that_is_a_file_is_refused_before_any_learning(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr("data_prep.train_vocab.train_vocabulary", lambda *_: pytest.fail("it learned"))
    with pytest.raises(ConfigError, match="expected a folder"):
        main(VocabularyOptions(input=(corpus,), output=tmp_path / "file"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sample_mb", "1e308"], "sample_mb: got '1e308', expected"),
        (["--sample_mb", "1e300"], "sample_mb"),
        (["--output", "x" * 300], "use a shorter name"),
        (["--text_column", "a\n\x1b[31m"], r"a\n\x1b[31m is not among the keys"),
        (["--input", "blank.txt"], "input: a sample of blank.txt has no text; give files that contain text"),
        (
            ["--input", "blank.txt", "--kind", "bpe"],
            "input: a sample of blank.txt has no text; give files that contain text",
        ),
    ],
)
def test_extreme_values_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "Ka lo mi."}\n')
    (tmp_path / "blank.txt").write_text("\n \n")
    monkeypatch.chdir(tmp_path)
    usual = {"--input": "a.jsonl", "--output": "vocab"}
    others = [f"{option}={usual[option]}" for option in usual if option not in arguments]
    monkeypatch.setattr("sys.argv", ["train_vocab.py", *others, *arguments])
    assert run_command(main, VocabularyOptions, None) == 2
    errors = capsys.readouterr().err
    assert said in errors and len(errors.splitlines()) == 1


def test_a_full_disk_is_one_line_and_the_rerun_command_resumes(corpus: Path, tmp_path: Path) -> None:
    command = ["data_prep/train_vocab.py", "--input", corpus, "--output", tmp_path / "vocab", "--size", "120"]
    done = run_script(*command, preexec_fn=limit_file_size)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "File too large; make room" in done.stderr
    assert run_script(*command).returncode == 0
