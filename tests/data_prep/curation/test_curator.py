"""Claims about applying the steps of curation to a document, and about its language."""

from pathlib import Path

import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from data_prep.curation.contamination import Contamination, make_index
from data_prep.curation.curator import Curator, _identifier, language_test
from electra_sampler.foundation.config import ConfigError
from tests.data_prep.real_text import lines_of

LONG = " ".join(f"word{n} and the" for n in range(60))
PAGE = """Home | About us | Contact
This is a page about the cats of the town. [1]
They sleep a lot, and they eat. Nobody knows why!
Please enable JavaScript to see more cats.
Read our privacy policy, please, and all of it.

All of them have names that nobody remembers."""


@pytest.mark.parametrize(
    ("steps", "text", "left", "removed"),
    [
        ((), PAGE, PAGE, {}),
        (
            ("c4_terminal_punctuation", "c4_sentences"),
            "Home\nAbout",
            "",
            {"c4_terminal_punctuation": len("Home\nAbout")},
        ),
    ],
    ids=["without steps a text stays as it is", "without lines left it is dropped as empty by the caller"],
)
def test_a_text_has_no_reason_to_be_dropped_without_steps_or_without_lines_left(
    steps: tuple[str, ...], text: str, left: str, removed: dict[str, int]
) -> None:
    verdict = Curator(steps).judge(text)
    assert (verdict.text, verdict.reason, verdict.removed) == (left, None, removed)


def test_lines_are_removed_and_every_character_is_counted_under_the_rule_that_removed_it() -> None:
    verdict = Curator(["c4"]).judge(PAGE)
    first, cats, sleep, script, policy, blank, names = PAGE.split("\n")
    assert verdict.text == "\n".join([cats.replace("[1]", ""), sleep, names])
    assert verdict.reason is None
    assert verdict.removed == {
        "c4_citation": 3,
        "c4_terminal_punctuation": len(first) + len(blank) + 2,
        "c4_javascript": len(script) + 1,
        "c4_policy": len(policy) + 1,
    }
    assert len(PAGE) - verdict.removed.total() == len(verdict.text)


def test_a_document_is_dropped_by_its_first_rule_on_the_lines_that_are_left() -> None:
    assert Curator(["c4"]).judge(PAGE.replace("sleep", "{sleep}")).reason == "c4_curly_bracket"
    assert Curator(["c4"]).judge(PAGE.replace("more", "{more}")).reason is None
    assert Curator(["c4", "gopher"]).judge(PAGE[:200]).reason == "gopher_word_count"
    assert Curator(["c4"]).judge("One line that is one sentence.\nAnother line that is one.").reason == "c4_sentences"


def test_the_order_of_the_names_given_is_of_no_account() -> None:
    page = f"{LONG}.\nHome\n{LONG} {{}}.\n{LONG} three.\n{LONG} four."
    assert Curator(["fineweb", "c4", "gopher"]).judge(page) == Curator(["gopher", "c4", "fineweb", "gopher"]).judge(
        page
    )
    assert Curator(["c4_sentences", "c4_terminal_punctuation"]).judge("Home.\nOne\nTwo").reason == "c4_sentences"


def test_language_is_judged_first_and_evaluation_sets_last_on_the_lines_that_are_left(tmp_path: Path) -> None:
    (tmp_path / "set.tsv").write_text("They sleep a lot, and they eat.\nplease enable javascript to see more cats\n")
    make_index([str(tmp_path / "set.tsv")], 7).save(tmp_path)
    found = Contamination(tmp_path)
    verdict = Curator(["c4"], language_test(("en",), 0.5), found).judge(PAGE)
    assert verdict.reason == "contaminated"
    assert verdict.match == ("set.tsv", "set.tsv#1", "they sleep a lot and they eat")
    assert verdict.removed.total() > 0
    assert Curator(["c4"], None, found).judge(PAGE.replace("sleep", "nap")).reason is None
    match = Curator([], None, found).judge(PAGE.replace("sleep", "nap")).match
    assert match is not None and match.example == "set.tsv#2"
    assert Curator(["c4"], language_test(("de",), 0.5), found).judge(PAGE).reason == "language"


SENTENCES = {
    "en": "All human beings are born free and equal in dignity and rights, and they are endowed with reason.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren, sie sind mit Vernunft begabt.",
    "hu": "Minden emberi lény szabadon születik és egyenlő méltósága és joga van, és ésszel rendelkezik.",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
}


@pytest.mark.parametrize("languages", [*((name,) for name in SENTENCES), ("de", "ja")])
def test_the_languages_named_are_kept_and_the_others_dropped(languages: tuple[str, ...]) -> None:
    is_kept = language_test(languages, 0.5)
    assert tuple(name for name, text in SENTENCES.items() if is_kept(text)) == languages


def test_text_without_evidence_is_dropped_and_short_text_needs_a_low_threshold() -> None:
    assert not any(language_test(("en",), 0.5)(text) for text in ("12345", "...", "Home", "OK"))
    assert not language_test(("en",), 0.5)("He was late.")
    assert language_test(("en",), 0.0)("He was late.")
    assert not language_test(("en",), 0.9999)(SENTENCES["en"])


def test_the_verdicts_are_py3langids_and_its_confidence_to_five_digits(shared_data: Path) -> None:
    theirs = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    for path in (shared_data / "wiki/enwiki-AA-0.xz", *sorted(shared_data.glob("languages/[dh][eu]/*.xz"))[::20]):
        for line in filter(str.strip, lines_of(path, limit=100)):
            language, confidence = _identifier().classify(line)
            their_language, their_confidence = theirs.classify(line)
            assert language == their_language
            assert abs(confidence - their_confidence) < 1e-5


def test_an_unknown_language_is_one_line_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="keep_language: got 'english', expected one of ace, af, am"):
        language_test(("en", "english"), 0.5)
