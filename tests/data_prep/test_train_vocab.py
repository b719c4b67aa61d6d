"""Claims about learning a vocabulary."""

import json

import pytest

from data_prep.inspect_shards import read_rows
from data_prep.manifest import load_manifest
from data_prep.tokens import SPECIAL_TOKENS, SubwordTokenizer, from_vocabulary, open_tokenizer
from data_prep.train_vocab import VocabularyOptions, main, train_vocabulary
from electra_sampler.foundation.config import ConfigError
from tests.data_prep.conftest import contents, limit_file_size, run_script

TEXTS = ["The lowest newer wider news, the widest lower news. Ünïcode 漢字!"] * 20


def test_the_vocabulary_begins_with_the_special_tokens_and_covers_the_text(tmp_path):
    tokens = train_vocabulary(lambda: iter(TEXTS), VocabularyOptions(size=120))
    assert tuple(tokens[:5]) == SPECIAL_TOKENS
    assert len(tokens) == len(set(tokens))
    assert {"the", "news", "漢", "u", "##d", "."} <= set(tokens)
    assert not {"T", "##漢", "##.", " "} & set(tokens)


def test_the_alphabet_is_cut_at_the_asked_number_of_characters():
    tokens = train_vocabulary(lambda: iter(TEXTS), VocabularyOptions(size=120, alphabet=5))
    assert {"e", "w", "t", "s", "n"} >= {token for token in tokens if len(token) == 1}
    assert "漢" not in tokens


def test_by_default_text_is_normalized_as_for_berts_uncased_vocabulary():
    made = from_vocabulary(SPECIAL_TOKENS, VocabularyOptions().normalizer)
    expected = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    assert json.loads(made.to_str())["normalizer"] == {"type": "BertNormalizer"} | expected


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_every_run_learns_the_same_vocabulary(kind, corpus, tmp_path):
    """The hash table in tokenizers has a new seed in every process."""
    for name in ("one", "two", "three"):
        asked = ("--size", 300, "--kind", kind)
        done = run_script("data_prep/train_vocab.py", "--input", corpus, "--output", tmp_path / name, *asked)
        assert done.returncode == 0, done.stderr
    assert len({(tmp_path / name / "tokenizer.json").read_bytes() for name in ("one", "two", "three")}) == 1


def test_the_folder_is_a_tokenizer_that_knows_its_text(corpus, tmp_path):
    main(VocabularyOptions(input=(corpus,), output=tmp_path / "vocab", size=300))
    tokenizer = open_tokenizer(str(tmp_path / "vocab"))
    ids, _ = tokenizer.encode([(corpus / "part-0.txt").read_text()])
    assert tokenizer.vocab_size <= 300
    assert not (ids == tokenizer.special.unk).any()


def test_a_byte_level_bpe_masks_whole_words_of_text_as_it_is(tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(f"{text} Naïve ☃ {number}.\n" for number, text in enumerate(TEXTS)))
    main(VocabularyOptions(input=(tmp_path / "text.txt",), output=tmp_path / "vocab", size=290, kind="bpe"))
    built = run_script(
        *("data_prep/build_shards.py", "--input", tmp_path / "text.txt", "--output", tmp_path / "shards"),
        *("--vocab", tmp_path / "vocab", "--sentences", "line", "--seq_length", 64),
    )
    assert built.returncode == 0, built.stderr
    shown = run_script("data_prep/inspect_shards.py", tmp_path / "shards", "--verify", "--show", 3)
    assert shown.returncode == 0, shown.stderr
    assert "The lowest newer wider news" in shown.stdout.replace("[", "").replace("]", "")
    assert "unknown words   0.0000%" in shown.stdout
    folder = SubwordTokenizer.load(tmp_path / "shards" / "tokenizer")
    shard = load_manifest(tmp_path / "shards").shards[0]
    for rows in read_rows(tmp_path / "shards", shard, load_manifest(tmp_path / "shards"), 8):
        for ids, masked, length in zip(rows.ids, rows.masked[:, 0], rows.lengths, strict=True):
            joined = folder.continuation[ids[1:length]]
            cut = (masked[1:length] != masked[: length - 1])[joined].sum()
            assert joined.any() and cut <= 2, "besides the two ends of the window, a mask cuts no word"


@pytest.mark.parametrize("option", ["alphabet", "cased", "join_cjk", "keep_accents"])
def test_an_option_without_effect_on_a_byte_level_bpe_is_refused(option, corpus, tmp_path):
    given = {option: 500 if option == "alphabet" else True}
    with pytest.raises(ConfigError, match=f"{option}: has no effect on --kind bpe"):
        main(VocabularyOptions(input=(corpus,), output=tmp_path / "vocab", kind="bpe", **given))
    assert not (tmp_path / "vocab").exists()


def test_a_size_below_the_alphabet_is_refused():
    texts = ["".join(chr(0x3B1 + number) for number in range(24)) + "abcdefghijklmnopqrstuvwxyz" * 3]
    with pytest.raises(ConfigError, match="expected at least"):
        train_vocabulary(lambda: iter(texts), VocabularyOptions(size=100))


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json", "tokenizer_config.json"])
def test_an_existing_vocabulary_is_not_overwritten(corpus, tmp_path, name):
    (tmp_path / name).write_text("mine")
    done = run_script("data_prep/train_vocab.py", "--input", corpus, "--output", tmp_path)
    assert done.returncode == 2
    assert f"already has a {name}" in done.stderr
    assert contents(tmp_path) == {name: b"mine"}


def test_the_text_of_json_lines_may_be_under_another_key(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(f'{{"body": "{text}"}}\n' for text in TEXTS))
    main(VocabularyOptions(input=(tmp_path / "a.jsonl",), output=tmp_path / "vocab", size=120, text_column="body"))
    assert "news" in open_tokenizer(str(tmp_path / "vocab")).tokens


def test_an_output_that_is_a_file_is_refused_before_any_learning(corpus, tmp_path):
    (tmp_path / "file").write_text("mine")
    done = run_script("data_prep/train_vocab.py", "--input", corpus, "--output", tmp_path / "file")
    assert done.returncode == 2
    assert "expected a folder" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sample_mb", "1e308"], "sample_mb: got '1e308', expected"),
        (["--sample_mb", "1e300"], "sample_mb"),
        (["--output", "x" * 300], "use a shorter name"),
        (["--text_column", "a\n\x1b[31m"], r"a\n\x1b[31m is not among the keys"),
    ],
)
def test_extreme_values_are_refused_in_one_line(tmp_path, arguments, said):
    (tmp_path / "a.jsonl").write_text('{"text": "Ka lo mi."}\n')
    output = [] if "--output" in arguments else ["--output", tmp_path / "vocab"]
    done = run_script("data_prep/train_vocab.py", "--input", tmp_path / "a.jsonl", *output, *arguments)
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_full_disk_is_one_line_and_the_rerun_command_resumes(corpus, tmp_path):
    command = ["data_prep/train_vocab.py", "--input", corpus, "--output", tmp_path / "vocab", "--size", "120"]
    done = run_script(*command, preexec_fn=limit_file_size)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "File too large; make room" in done.stderr
    assert run_script(*command).returncode == 0
