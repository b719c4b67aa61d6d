"""Claims about the rules: each keeps a text at its threshold and removes the next one."""

from typing import Any

import pytest

from data_prep.curation.measures import Measures
from data_prep.curation.rules import LINE_RULES, RULES, SETS, LineRule, Rule


def repeating(n: int, length: int) -> str:
    """Twice the same n words of one letter, around one long word; `length` characters in all."""
    phrase = " ".join("abcdefghij"[:n])
    return f"{phrase} {'x' * (length - 2 * len(phrase) - 2)} {phrase}"


def lines(*counts_and_lines: Any) -> str:
    """A text of lines, given as a number and a line in turn; other lines are distinct where they hold {}."""
    pairs = zip(counts_and_lines[::2], counts_and_lines[1::2], strict=True)
    return "\n".join(line.replace("{}", f"{number:02d}") for count, line in pairs for number in range(count))


CASES = {
    "gopher_word_count": [("word " * 50, "word " * 49), ("word " * 100_000, "word " * 100_001)],
    "gopher_word_length": [("abc abc", "abc ab"), ("abcdefghij " * 2, "abcdefghij abcdefghijk")],
    "gopher_hashes": [("a " * 9 + "#", "a " * 9 + "##")],
    "gopher_ellipses": [("a " * 9 + "a...", "a " * 9 + "a...…")],
    "gopher_bullets": [(lines(8, "- a", 1, " • a", 1, "a"), lines(9, "- a", 1, " • a"))],
    "gopher_ellipsis_lines": [(lines(2, "a...", 1, "a…  ", 7, "a"), lines(3, "a...", 1, "a…", 6, "a"))],
    "gopher_letters": [("a1 ü don't x 5", "a 1 2 b c")],
    "gopher_stop_words": [("the end of it", "the the end"), ("to be", "To be")],
    "gopher_duplicate_lines": [(lines(7, "{}", 3, "00"), lines(6, "{}", 4, "00"))],
    "gopher_duplicate_paragraphs": [
        (lines(7, "{}\n", 3, "00\n"), lines(6, "{}\n", 4, "00\n")),
        (lines(10, "{}\n00"), lines(6, "{}\n", 4, "00\n\n  ")),
    ],
    "gopher_duplicate_line_characters": [("ab\nab\nabcd", "ab\nab\nabc")],
    "gopher_duplicate_paragraph_characters": [("ab\n\nab\n\ncd", "ab\n\nab\n\nc")],
    "gopher_top_2_gram": [(repeating(2, 30), repeating(2, 29))],
    "gopher_top_3_gram": [(repeating(3, 56), repeating(3, 55))],
    "gopher_top_4_gram": [(repeating(4, 88), repeating(4, 87))],
    "gopher_duplicate_5_grams": [(repeating(5, 34), repeating(5, 33))],
    "gopher_duplicate_6_grams": [(repeating(6, 43), repeating(6, 42))],
    "gopher_duplicate_7_grams": [(repeating(7, 54), repeating(7, 53))],
    "gopher_duplicate_8_grams": [(repeating(8, 67), repeating(8, 66))],
    "gopher_duplicate_9_grams": [(repeating(9, 82), repeating(9, 81))],
    "gopher_duplicate_10_grams": [(repeating(10, 100), repeating(10, 99))],
    "c4_long_word": [("a " + "x" * 1000, "a " + "x" * 1001)],
    "c4_terminal_punctuation": [
        ("One. ", "One"),
        ("One?", "One..."),
        ('"One"', "(One.)"),
        ("“One”", "One;"),
        ("One!", "   "),
    ],
    "c4_line_words": [("a b c d e", "a b c d-e")],
    "c4_javascript": [("Java script", "Enable JavaScript.")],
    "c4_policy": [
        ("We use a cookie.", "We use cookies."),
        ("private policy", "Privacy Policy"),
        ("terms", "Terms of use"),
        ("cookies policy", "Cookie policy"),
        ("using cookies", "This site uses cookies"),
        ("use no cookies", "The use of cookies"),
    ],
    "c4_lorem_ipsum": [("lorem", "A Lorem Ipsum.")],
    "c4_curly_bracket": [("[a] }", "{a")],
    "c4_sentences": [
        ("One. Two! Three", "One. Two."),
        ("One\n\nTwo\nThree", "One, two.\n\nThree"),
        ('He said "No." She left. Why?', "Costs 3.5 dollars, e.g. here. Then more."),
    ],
    "fineweb_punctuated_lines": [
        (lines(3, "a.", 22, "a"), lines(2, "a.", 23, "a")),
        ("三。", "(Five.)"),
        ("یہ۔", '"Five."'),
    ],
    "fineweb_short_lines": [
        (lines(67, "a", 33, "x" * 31), lines(68, "a", 32, "x" * 31)),
        (lines(67, "x" * 30, 33, "x" * 31), lines(67, "a", 32, "x" * 31, 1, "x" * 30)),
    ],
    "fineweb_duplicate_line_characters": [("a\na\n" + "x" * 98, "a\na\n" + "x" * 97)],
    "fineweb_line_breaks": [("a b c\n" * 3 + "d", "a b c\n" * 4)],
}


def kept(rule: LineRule | Rule, text: str) -> bool:
    if isinstance(rule, LineRule):
        return rule.edit(text) == text
    return rule.least <= rule.measure(Measures(text)) <= rule.most


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.name != "c4_citation"], ids=lambda rule: rule.name)
def test_a_rule_keeps_a_text_at_its_threshold_and_removes_the_next(rule: LineRule | Rule) -> None:
    for at_threshold, beyond in CASES[rule.name]:
        assert kept(rule, at_threshold), at_threshold[:200]
        assert not kept(rule, beyond), beyond[:200]


def test_citation_markers_are_removed_and_other_brackets_are_not() -> None:
    [rule] = [rule for rule in LINE_RULES if rule.name == "c4_citation"]
    assert rule.edit("A[1][23] b[edit] c.[citation needed][] [d] [1a]") == "A b c. [d] [1a]"


def test_every_rule_has_its_own_name_and_names_its_source() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.startswith(f"{name}_") for name, rules in SETS.items() for rule in rules)
    assert all(rule.source for rule in RULES)
