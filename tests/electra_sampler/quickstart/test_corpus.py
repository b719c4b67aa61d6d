"""Claims about the corpus made from installed documentation, and about recognizing English prose in it."""

import re
from pathlib import Path

import pytest

from electra_sampler.quickstart.corpus import (
    documents,
    is_prose,
    is_set_aside,
    paragraphs,
    prose_of,
    python_files,
    sources,
)

SENTENCE = "This is sentence number {} of the text that is written for the test of a corpus."


def write_module(path: Path, *sentences: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    functions = "".join(f'def f{i}():\n    """{text}"""\n' for i, text in enumerate(sentences))
    path.write_text(f'"""Module."""\n{functions}')


def numbered(word: str, count: int = 4) -> list[str]:
    return [SENTENCE.format(f"{word} {letter}") for letter in "abcdefgh"[:count]]


FIRST, SECOND, THIRD, FOURTH = numbered("in order")


@pytest.mark.parametrize(
    ("source", "prose"),
    [
        (f'"""{FIRST}"""\nraise RuntimeError\n', [FIRST]),
        (
            f'"""{FIRST}"""\nclass A:\n    """{SECOND}"""\n    def f():\n        """{THIRD}"""\n'
            f'async def g():\n    """{FOURTH}"""\n',
            [FIRST, SECOND, THIRD, FOURTH],
        ),
        ('"""The template of a file that is to be filled in."""\nclass {{ name }}:\n', []),
    ],
    ids=["the code is not run", "the order is the source's", "other syntax than this Python's has none"],
)
def test_the_prose_of_a_file_is_its_docstrings(source: str, prose: list[str], tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(source)
    assert prose_of(tmp_path / "module.py") == prose


def test_an_inherited_docstring_is_kept_once(tmp_path: Path) -> None:
    write_module(tmp_path / "a.py", *numbered("shared"), *numbered("of a"))
    write_module(tmp_path / "b.py", *numbered("shared"), *numbered("of b"))
    first, second = documents(map(prose_of, python_files(tmp_path)), seen=set())
    assert first.splitlines() == numbered("shared") + numbered("of a")
    assert second.splitlines() == numbered("of b")


def test_files_are_in_a_fixed_order_and_tests_are_left_out(tmp_path: Path) -> None:
    for name in ("b.py", "a/z.py", "a/tests/c.py", "a.py", "notes.txt"):
        write_module(tmp_path / name)
    names = [path.relative_to(tmp_path).as_posix() for path in python_files(tmp_path)]
    assert names == ["a.py", "a/z.py", "b.py"]


def test_about_one_document_in_twelve_is_set_aside() -> None:
    share = sum(is_set_aside(f"document {i}") for i in range(12_000)) / 12_000
    assert abs(share - 1 / 12) < 0.01


def test_the_installed_packages_contain_english() -> None:
    texts = list(documents(map(prose_of, python_files(sources()["numpy"])), seen=set()))
    words = re.findall(r"[a-z]+", " ".join(texts).lower())
    assert len(words) > 10_000
    assert 0.04 < words.count("the") / len(words) < 0.12  # about 6-7% in running English


DOCSTRING = """Compute the mean of the values along the given axis.

Parameters
----------
values : array_like
    The numbers to be averaged, as a list or
    as an array of any shape.
axis : {0, 1}, default 0

See Also
--------
median, mode

The result is a :class:`~numpy.ndarray` that *may* share ``memory`` with the input:

* The first item is a sentence about the shape of the result.
* The second item is a sentence that goes on
  over a second line of the list.

>>> mean([1, 2, 3])
2.0
"""


MARKUP = "The ``name`` of :func:`~a.sum` is *not* in [the page](https://x.org) of the `manual <https://y.org>`_."


@pytest.mark.parametrize(
    ("docstring", "sentences"),
    [
        (
            DOCSTRING,
            [
                "Compute the mean of the values along the given axis.",
                "The numbers to be averaged, as a list or as an array of any shape.",
                "The first item is a sentence about the shape of the result.",
                "The second item is a sentence that goes on over a second line of the list.",
            ],
        ),
        (MARKUP, ["The name of a.sum is not in the page of the manual."]),
    ],
)
def test_paragraphs_of_a_docstring_are_sentences_without_signatures_and_examples_and_the_text_inside_markup(
    docstring: str, sentences: list[str]
) -> None:
    assert list(paragraphs(docstring)) == sentences


@pytest.mark.parametrize(
    "text",
    [
        "too short.",
        "the sentence does not begin with a capital letter or name.",
        "The sentence does not come to an end with a full stop",
        "The value of x = y is to be given in the call.",
        "See the page at https://example.org for more of this.",
        "Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa.",
        "The 12 34 56 78 and 90 are the numbers 11 of 12 it.",
    ],
)
def test_fragments_code_links_and_lists_of_names_are_not_prose(text: str) -> None:
    assert not is_prose(text)
