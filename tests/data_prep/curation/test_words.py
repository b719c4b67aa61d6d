"""Claims about words in any language."""

import pytest

from data_prep.curation.words import words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It 's x_y, 3.14; café naïve", "It s x y 3 14 café naïve"),
        ("cafe\u0301 x\u0301y", "cafe\u0301 x\u0301y"),
        ("छोटी दिल्ली में।", "छोटी दिल्ली में"),  # vowel signs are marks
        ("தமிழ் மொழி", "தமிழ் மொழி"),
        ("한국어를 배운다.", "한국어를 배운다"),
        ("日本hyōカター人々", "日 本 hyō カ タ ー 人 々"),
        ("ที่นี่abc ๑๒", "ที่ นี่ abc ๑๒"),  # a letter and its marks
        ("ភាសាខ្មែរ", "ភា សា ខ្ មែ រ"),
        ("*** ---", ""),
        ("", ""),
    ],
)
def test_words_are_letters_with_their_marks_and_digits_and_single_letters_where_no_spaces_separate_words(
    text: str, expected: str
) -> None:
    assert words(text) == expected.split()
