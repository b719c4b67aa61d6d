"""Claims about sentence ends."""

import subprocess
import sys

import pytest

from data_prep.build_shards import main
from data_prep.manifest import load_manifest
from data_prep.sentences import (
    Punkt,
    PunktModel,
    find_model,
    load_model,
    sample_by_content,
    save_model,
    split_sentences,
)
from electra_sampler.foundation.config import ConfigError

TEXT = (
    "Dr. Adams met Mr. Brown at 5 p.m. in the U.S. embassy. They talked. Dr. Adams left. Mr. Brown stayed.\n"
    "Prof. Clark wrote to Dr. Adams. It was late. Mr. Brown read it. Prof. Clark slept.\n"
)


@pytest.fixture(scope="module")
def english(shared_data):
    return find_model(shared_data / "nltk_data")


def test_a_line_end_ends_a_sentence_and_only_white_space_is_lost(english):
    text = "A heading\nSome text without an end\r\nand more \n\n of it. Yes."
    sentences = split_sentences(text, Punkt(load_model(english)))
    assert sentences[:3] == ["A heading", "Some text without an end", "and more"]
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_a_model_survives_saving_and_loading(tmp_path):
    trained = PunktModel.trained([TEXT * 30])
    save_model(trained, tmp_path)
    loaded = load_model(tmp_path)
    assert "dr" in loaded.abbrev_types
    assert vars(loaded) == vars(trained)
    assert loaded.sha256() == trained.sha256()


def test_the_real_model_is_read_as_nltk_reads_it(english, monkeypatch):
    from nltk import data
    from nltk.tokenize.punkt import load_punkt_params

    monkeypatch.setattr(data, "path", [str(english)])  # NLTK opens files only below its data paths
    assert vars(load_model(english)) == vars(load_punkt_params(data.FileSystemPathPointer(str(english))))


def test_training_does_not_depend_on_the_hash_seed_in_four_languages(shared_data):
    program = """
import lzma, sys
from data_prep.sentences import PunktModel
for path in sys.argv[1:]:
    print(PunktModel.trained([lzma.open(path).read(50_000).decode(errors="replace")]).sha256())
"""
    texts = ("books/novels/*.xz", "languages/de/*.xz", "languages/hu/*.xz", "languages/tr/*dev*")
    command = [sys.executable, "-c", program, *(sorted(shared_data.glob(text))[0] for text in texts)]
    hashes = {
        subprocess.run(
            command,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
    assert len(set(hashes.pop().split())) == 4


def test_a_sample_is_chosen_by_content():
    texts = [f"text {number} {'x' * number}" for number in range(100)]
    chosen = sample_by_content(texts, 500)
    assert sum(map(len, chosen)) == 500
    assert chosen == sample_by_content(texts[::-1], 500) != texts[: len(chosen)]
    assert sorted(sample_by_content(texts, 10**6)) == sorted(texts)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no Punkt model; give a folder with abbrev_types\.txt"):
        find_model(tmp_path)


def test_a_damaged_model_is_refused(tmp_path):
    save_model(PunktModel.trained([TEXT]), tmp_path)
    (tmp_path / "ortho_context.tab").write_text("word\tnot a number")
    with pytest.raises(ConfigError, match="is not a Punkt model"):
        load_model(tmp_path)


def test_with_one_sentence_per_line_only_line_ends_count():
    assert split_sentences("One. Two.\r\n\n  Three \u2028four.", None) == ["One. Two.", "Three", "four."]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("彼は「行こう。」と言った。３.5です！？次", ["彼は「行こう。」", "と言った。", "３.5です！？", "次"]),
        ("هل هذا؟ نعم، هذا. ثم ذهب", ["هل هذا؟", "نعم، هذا.", "ثم ذهب"]),
        ("یہ ہے۔ وہ ہے۔", ["یہ ہے۔", "وہ ہے۔"]),
        ("यह है। वह है॥ और", ["यह है।", "वह है॥", "और"]),
        ("Սա է։ Նա է", ["Սա է։", "Նա է"]),
        ("ครับ ผม\nไป", ["ครับ ผม", "ไป"]),
    ],
)
def test_marks_of_other_scripts_end_sentences_if_asked(text, sentences):
    punkt = Punkt(PunktModel.trained([TEXT]))
    assert split_sentences(text, punkt, marks=True) == sentences
    assert split_sentences(text.splitlines()[0], punkt)[0].startswith(" ".join(sentences[:1]))


def test_marks_change_nothing_where_punkt_knows_all_of_them(english):
    punkt = Punkt(load_model(english))
    assert split_sentences(TEXT, punkt, marks=True) == split_sentences(TEXT, punkt)


def test_a_build_warns_if_most_sentences_end_with_marks_that_punkt_ignores(options, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("我们走。他们来了？好。 3.5\n" * 20, encoding="utf-8")
    build = options.model_copy(update={"input": (tmp_path / "text.txt",), "dry_run": True})
    assert main(build) == 0
    assert "end with 。 ？, which Punkt ignores; use --sentences marks" in capsys.readouterr().out
    assert main(build.model_copy(update={"sentences": "marks"})) == 0
    assert "Punkt" not in capsys.readouterr().out


def test_a_build_with_one_sentence_per_line_needs_no_punkt_model(options, built, tmp_path):
    output = tmp_path / "lines"
    assert main(options.model_copy(update={"output": output, "sentences": "line"})) == 0
    assert not (output / "punkt").exists()
    config = load_manifest(output).config
    assert (config.sentences, config.punkt, config.punkt_sha256) == ("line", "none", "")
    assert load_manifest(output).books == load_manifest(built).books
    with pytest.raises(ConfigError, match=r"sentences: the build in .* has punkt, this one line"):
        main(options.model_copy(update={"sentences": "line"}))
