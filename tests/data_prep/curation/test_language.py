"""Claims about the language of documents, on real text in four languages."""

import lzma
from itertools import islice

import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from data_prep.curation.curator import _identifier, language_test
from electra_sampler.foundation.config import ConfigError

SENTENCES = {
    "en": "All human beings are born free and equal in dignity and rights, and they are endowed with reason.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren, sie sind mit Vernunft begabt.",
    "hu": "Minden emberi lény szabadon születik és egyenlő méltósága és joga van, és ésszel rendelkezik.",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_language_is_kept_and_the_others_are_dropped(language):
    is_kept = language_test((language,), 0.5)
    assert [name for name, text in SENTENCES.items() if is_kept(text)] == [language]


def test_several_languages_may_be_kept():
    is_kept = language_test(("de", "ja"), 0.5)
    assert [name for name, text in SENTENCES.items() if is_kept(text)] == ["de", "ja"]


def test_text_without_evidence_is_dropped_and_short_text_needs_a_low_threshold():
    for text in ("12345", "...", "Home", "OK"):
        assert not language_test(("en",), 0.5)(text)
    assert not language_test(("en",), 0.5)("He was late.")
    assert language_test(("en",), 0.0)("He was late.")
    assert not language_test(("en",), 0.9999)(SENTENCES["en"])


def test_the_verdicts_are_py3langids_and_its_confidence_to_five_digits(shared_data):
    theirs = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    for path in ("wiki/enwiki-AA-0.xz", *sorted(shared_data.glob("languages/[dh][eu]/*.xz"))[::20]):
        with lzma.open(shared_data / path, "rt", errors="replace") as file:
            for line in filter(str.strip, islice(file, 100)):
                language, confidence = _identifier().classify(line)
                their_language, their_confidence = theirs.classify(line)
                assert language == their_language
                assert abs(confidence - their_confidence) < 1e-5


def test_an_unknown_language_is_one_line_that_names_the_known_ones():
    with pytest.raises(ConfigError, match="keep_language: got 'english', expected one of ace, af, am"):
        language_test(("en", "english"), 0.5)
