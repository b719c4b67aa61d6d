"""finetune/tagging/files.py: CoNLL columns and CoNLL-U as they are written, and mistakes named by file and line."""

import lzma
from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.tagging.files import TASKS, find_file, load_tagging, read_tagged

NER, POS = TASKS["NER"], TASKS["POS"]
CONLLU = """# sent_id = 1
1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_
1\tde\tde\tADP\t_\t_\t0\troot\t_\t_
2\tle\tle\tDET\t_\t_\t1\tdet\t_\t_
2.1\tgone\t_\tVERB\t_\t_\t_\t_\t_\t_

# sent_id = 2
1\t#\t#\tSYM\t_\t_\t0\troot\t_\t_
"""


def write(folder: Path, text: str, name: str = "train.conll") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_tabs_and_spaces_comments_documents_and_line_ends_are_read(tmp_path: Path) -> None:
    expected = [(("Ann", "Lee", "#"), ("B-per", "I-per", "O")), (("#tag",), ("O",))]
    tabs = "# id 1\nAnn\tB-per\r\nLee\tI-per\r\n#\tO\r\n\t\r\n-DOCSTART-\tO\n\n#tag\tO"
    spaces = "-DOCSTART- -X- O\n\nAnn NN  B-per\nLee NN I-per\n# SYM O\n\n# a comment of five words\n#tag NN O\n\n\n"
    for text in (tabs, spaces):
        assert read_tagged(write(tmp_path, text), NER) == expected


def test_conllu_skips_multiword_tokens_empty_nodes_and_comments(tmp_path: Path) -> None:
    sentences = read_tagged(write(tmp_path, CONLLU, "fr-ud-train.conllu"), POS)
    assert sentences == [(("de", "le"), ("ADP", "DET")), (("#",), ("SYM",))]


def test_characters_at_which_python_splits_lines_are_part_of_a_word(tmp_path: Path) -> None:
    (sentence,) = read_tagged(write(tmp_path, "a\u2028b\tO\n\u00a0\tO\n\x85\tO\n"), NER)
    assert sentence.words == ("a\u2028b", "\u00a0", "\x85")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a\tO\nb\n", 2, "1 columns, expected 2: the word first, its label last"),
        ("a\tO\nb\tX\tO\n", 2, "3 columns, expected 2"),
        ("a\nb\n", 1, "1 columns, expected 2"),
        ("a\tO\nb\t\n", 2, r"got 'b\\t', expected a word and a label"),
        ("a\tO\n\n\tO\n", 3, r"got '\\tO', expected a word and a label"),
        ("a\tO\nb\tPER\n", 2, "label 'PER', expected O, B-TYPE or I-TYPE"),
        ("a\tI-per\n", 1, "label 'I-per' follows 'O', expected B-per there; convert the file to IOB2"),
        ("a\tB-loc\nb\tI-per\n", 2, "label 'I-per' follows 'B-loc', expected B-per"),
        ("a\tB-per\n\nb\tI-per\n", 3, "label 'I-per' follows 'O'"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_tagged(path, NER)
    assert error.value.problems[0].startswith(f"data_dir: {path}:{line}: ")
    assert problem.replace("\\\\", "\\") in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("2\tle\tle\t", "2\tle\t", ":4: 9 columns, expected CoNLL-U's 10"),
        ("2\tle\tle\tDET", "2\tle\tle\t_", ":4: no part-of-speech tag .UPOS. in column 4"),
        ("2\tle", "two\tle", ":4: ID 'two', expected a number such as 1, 1-2 or 1.1"),
    ],
)
def test_a_malformed_line_of_conllu_is_named(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = write(tmp_path, CONLLU.replace(old, new), "train.conllu")
    with pytest.raises(ConfigError, match=problem):
        read_tagged(path, POS)


@pytest.mark.parametrize(
    ("content", "kind", "problem"),
    [
        ("# nothing\n\n", ConfigError, "has no sentences"),
        (
            CONLLU,
            ConfigError,
            r"train.conll has words \('1-2', '1', '2', '2\.1'\), the numbers .* in CoNLL-U the suffix .conllu",
        ),
        ("1\tAnn\tO\n2\tran\tO\n\n1\tNo\tO\n", ConfigError, r"has words \('1', '2'\), the numbers of its words"),
        ("\xff\xfe\x00", UnicodeDecodeError, "utf-8"),  # which the command line turns into one that names the file
    ],
)
def test_a_file_without_readable_words_is_refused(
    content: str, kind: type[Exception], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "train.conll").write_bytes(content.encode("latin-1"))
    with pytest.raises(kind, match=problem):
        read_tagged(tmp_path / "train.conll", POS)


def test_files_are_found_by_the_split_in_their_names(tmp_path: Path) -> None:
    for name in ("wnut17train.conll", "valid.txt", "en_gum-ud-test.conllu", "README"):
        (tmp_path / name).touch()
    found = [find_file(tmp_path, split).name for split in ("train", "dev", "test")]
    assert found == ["wnut17train.conll", "valid.txt", "en_gum-ud-test.conllu"]
    (tmp_path / "dev.txt").touch()
    with pytest.raises(ConfigError, match=r"has 2 files with 'dev' or 'valid' in their names: dev\.txt, valid\.txt"):
        find_file(tmp_path, "dev")
    with pytest.raises(ConfigError, match=r"no folder .*nowhere"):
        find_file(tmp_path / "nowhere", "dev")


def test_the_raw_text_beside_a_released_treebank_does_not_count(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"en_gum-ud-{split}.conllu").touch()
        (tmp_path / f"en_gum-ud-{split}.txt").touch()
        assert find_file(tmp_path, split).name == f"en_gum-ud-{split}.conllu"
    (tmp_path / "train.txt").touch()
    with pytest.raises(ConfigError, match=r"2 files with 'train' in their names: en_gum-ud-train\.conllu, train\.txt"):
        find_file(tmp_path, "train")


def test_the_test_file_is_read_only_on_request_and_leaves_the_fingerprint(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        write(tmp_path, "a\tO\n", f"{name}.conll")
    without = load_tagging(NER, tmp_path)
    with pytest.raises(ConfigError, match="has 0 files with 'test' in their names; expected one, such as"):
        load_tagging(NER, tmp_path, test=True)
    write(tmp_path, "b\tB-per\n", "test.conll")
    data = load_tagging(NER, tmp_path, test=True)
    assert (without.test, without.test_answers()) == ([], [])
    assert data.test == [(("b",), ("B-per",))] and len(data.test_answers()) == 1
    assert data.fingerprint() == without.fingerprint()
    write(tmp_path, "a\tB-per\n", "dev.conll")
    assert load_tagging(NER, tmp_path).fingerprint() != without.fingerprint()


def test_wnut17_and_gum_are_read_whole(shared_data: Path, tmp_path: Path) -> None:
    """Counts by other means: sentences are the blocks of lines, words the lines with a label."""
    for name, sentences, words, entities in (("train", 3394, 62730, 1975), ("dev", 1009, 15733, 836)):
        packed = (shared_data / "ner" / "wnut17" / f"{name}.conll.xz").read_bytes()
        found = read_tagged(write(tmp_path, lzma.decompress(packed).decode(), f"{name}.conll"), NER)
        labels = [label for sentence in found for label in sentence.labels]
        assert (len(found), len(labels)) == (sentences, words)
        assert sum(label.startswith("B-") for label in labels) == entities
    packed = (shared_data / "pos" / "gum" / "en_gum-ud-dev.conllu.xz").read_bytes()
    text = lzma.decompress(packed).decode()
    found = read_tagged(write(tmp_path, text, "gum.conllu"), POS)
    assert len(found) == text.count("# sent_id = ")
    assert len({label for sentence in found for label in sentence.labels}) == 17
