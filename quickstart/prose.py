"""Which parts of a docstring read as English prose, and how they read without their markup."""

import re
from collections.abc import Iterator

BULLET = re.compile(r"^(\s*)([-*+•]|\d+[.)]|\[\d+\]|\.\. \[\w+\])(\s+)")
ROLE = re.compile(r":[a-zA-Z:]+:`~?([^`<]*?)(?:\s*<[^`]*>)?`")  # :func:`sum` -> sum
LINK = re.compile(r"\[([^\]]+)\]\((?:[^)]*)\)|`([^`<]+?)\s*<[^`>]*>`_*")  # Markdown's and reST's -> their text
MARKUP = re.compile(r"`+|\*\*|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)|(?<=\w)_+(?!\w)")
REFUSED = re.compile(r">>>|://|www\.|::|[{}|\\=<>\[\]@#$^~]|\w\(|__|--|\.\.\.|\w_\w|\d{4,}")
WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*[,.;:!?)\"']*|\([A-Za-z'-]+[).,;:]*|\"[A-Za-z'-]+[\".,;:]*")
_FUNCTION_WORDS = """
    a an and are as at be been but by can could do does each for from has have how if in into is it its may
    more must no not of on one only or other should so such than that the their then there these they this to
    use used was we when where which while will with without would you your
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
FEWEST_WORDS = 6
WORD_SHARE = 0.9  # of a paragraph's tokens that are plain words: formulas, signatures and tables fall below
FUNCTION_WORD_SHARE = 0.25  # running English has 40-50%; lists of names have next to none


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a docstring that read as prose, each on one line and free of markup."""
    for block in _blocks(text):
        paragraph = _plain(block)
        if is_prose(paragraph):
            yield paragraph


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph reads as running English: whole sentences, plain words, enough function words."""
    if not paragraph[:1].isupper() or paragraph[-1] not in ".!?" or REFUSED.search(paragraph):
        return False
    tokens = paragraph.split()
    words = [token for token in tokens if WORD.fullmatch(token)]
    if len(tokens) < FEWEST_WORDS or len(words) < WORD_SHARE * len(tokens):
        return False
    function_words = sum(word.lower().rstrip(",.;:") in FUNCTION_WORDS for word in words)
    return function_words >= FUNCTION_WORD_SHARE * len(tokens)


def _blocks(text: str) -> Iterator[list[str]]:
    """Runs of lines of one indentation between blank lines; a list item is a run of its own."""
    block: list[str] = []
    indent = -1
    for raw in text.expandtabs().splitlines():
        item = BULLET.match(raw)
        line = " " * item.end() + raw[item.end() :] if item else raw
        line_indent = len(line) - len(line.lstrip())
        if block and (not line.strip() or item or line_indent != indent):
            yield block
            block = []
        if line.strip():
            block.append(line.strip())
            indent = line_indent
    if block:
        yield block


def _plain(block: list[str]) -> str:
    """The block as one line without reST or Markdown markup."""
    text = ROLE.sub(r"\1", " ".join(block))
    text = LINK.sub(lambda match: match[1] or match[2], text)
    return " ".join(MARKUP.sub("", text).split())
