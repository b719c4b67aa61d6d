"""Claims about MediaWiki pages and their plain text."""

import re

import pytest

from data_prep.chunks import read_chunks
from data_prep.cleaning import clean
from data_prep.formats import Reading
from data_prep.sources import find_sources
from data_prep.wikitext import _LONGEST_SECTION, _sections, page_text, plain_text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("'''Bold''' and ''italic''.", "Bold and italic."),
        ("A [[link]], a [[page|named one]], [http://x.org a site].", "A link, a named one, a site."),
        ("[[File:a.png|thumb|A [[caption]]]]Text[[Category:Things]][[de:Ding]]", "Text"),
        ("See [[:Category:Things]].", "See Category:Things."),
        ("One{{cite|x={{y}}}} two<ref>Book, p. 1</ref> three<ref name=a />.", "One two three."),
        ("Before\n{| class=x\n! a\n|-\n| b [[c]]\n|}\nafter", "Before\n\nafter"),
        ("== Head ==\nText<!-- not this -->\n\n\n\nmore", "Head\nText\n\nmore"),
        ("A&nbsp;B &lt;i&gt; &#1234567890;", "A\xa0B <i> &#1234567890;"),
        ("Athens ({{lang|el|x}}) is<br>old __NOTOC__", "Athens is\nold"),
        ("x<math>a^2</math> <gallery>b.png</gallery><nowiki>[[c]]</nowiki>", "x [[c]]"),
        ("{{" * 3000, "{{" * 3000),
        ("[[" * 3000 + "a", "[[" * 3000 + "a"),
        ("<b>" * 2000, "<b>" * 2000),
    ],
)
def test_only_running_text_is_left(wikitext, text):
    assert plain_text(wikitext) == text


def test_sections_are_cut_at_headings_and_no_longer_than_allowed():
    wikitext = "Lead.\n== A ==\n" + "A line.\n" * 5000 + "=== B ===\nx"
    sections = list(_sections(wikitext))
    assert "".join(sections) == wikitext
    assert max(map(len, sections)) <= _LONGEST_SECTION
    assert sections[0] == "Lead.\n"
    assert sections[-1] == "=== B ===\nx"
    assert all(section.endswith("\n") for section in sections[:-1])


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (b"<ns>0</ns><text>a &lt;b&gt; &amp;amp; </text>", (b"a <b> &amp;", None)),
        (b"<ns>0</ns><redirect title='x' /><text>#REDIRECT</text>", (b"#REDIRECT", "redirect")),
        (b"<ns>10</ns><redirect title='x' /><text>t</text>", (b"t", "other_namespace")),
        (b"<ns>0</ns><text>old</text><text bytes='3' xml:space='preserve'>new</text>", (b"new", None)),
        (b"<ns>0</ns><text bytes='0' />", (b"", None)),
        (b"", (b"", None)),
    ],
)
def test_a_page_gives_its_newest_text_and_why_it_is_no_article(page, expected):
    assert page_text(page) == expected


def test_a_real_dump_gives_articles_without_markup(shared_data):
    sources = find_sources([shared_data / "wiki" / "enwiki-pages-articles-sample.xml.bz2"])
    chunk = next(read_chunks(sources, 1_000_000, Reading()))
    documents = list(chunk.pieces[0].documents(Reading()))
    reasons = [document.reason for document in documents]
    assert reasons.count("redirect") > 5
    texts = [clean(document.content, wikitext=True).text for document in documents if document.reason is None]
    assert texts[0].startswith("Anarchism is a political philosophy that advocates self-governed societies")
    assert not re.search(r"\{\{|\}\}|\[\[|<ref|'''|\{\||<br|&nbsp;", "\n".join(texts))
