"""Claims about what counts as English prose in a docstring."""

import pytest

from quickstart.prose import is_prose, paragraphs

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


def test_paragraphs_of_a_docstring_are_its_sentences_without_markup_signatures_or_examples():
    assert list(paragraphs(DOCSTRING)) == [
        "Compute the mean of the values along the given axis.",
        "The numbers to be averaged, as a list or as an array of any shape.",
        "The first item is a sentence about the shape of the result.",
        "The second item is a sentence that goes on over a second line of the list.",
    ]


def test_markup_leaves_its_text_behind():
    text = "The ``name`` of :func:`~a.sum` is *not* in [the page](https://x.org) of the `manual <https://y.org>`_."
    assert list(paragraphs(text)) == ["The name of a.sum is not in the page of the manual."]


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
def test_fragments_code_links_and_lists_of_names_are_not_prose(text):
    assert not is_prose(text)
