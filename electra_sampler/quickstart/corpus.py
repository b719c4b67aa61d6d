"""Writes a small English corpus and a task, offline, from the documentation inside the installed Python packages.

Run: python electra_sampler/quickstart/corpus.py [--output FOLDER] [--task FOLDER]

Sources are parsed, never imported. A module's docstrings make one document. Only paragraphs that read as English prose
are kept, each once (inherited docstrings repeat), one per line, with a blank line between documents.
"""

import ast
import gc
import hashlib
import re
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from data_prep.workers import start_pool
from electra_sampler.foundation.command_line import run_script
from electra_sampler.foundation.config import ConfigError, StrictConfig
from electra_sampler.foundation.machine import cores
from electra_sampler.quickstart.acceptability import DEV_SIZE, TRAIN_SIZE, write_task

DATA = Path("data/quickstart")
"""Folder of the quickstart's data. The quickstart empties it when it starts, and touches no other data folder."""
RAW, TASKS = DATA / "raw", DATA / "glue"
# Installed packages with much prose: direct and indirect dependencies of the project.
PACKAGES = (
    *("numpy", "scipy", "sklearn", "matplotlib", "pandas", "networkx", "sympy", "mpmath"),
    *("torch", "transformers", "datasets", "huggingface_hub", "nltk", "megatron", "deepspeed", "pyarrow"),
)
SKIPPED_FOLDERS = {"test", "tests", "testing", "site-packages", "dist-packages", "idlelib", "turtledemo"}
SHORTEST_DOCUMENT = 200  # characters: anything shorter is a sentence or two
LEAST_CORPUS = 5_000_000  # bytes: below it the tiny preset has too little to learn from
SET_ASIDE_SHARE = 12  # one document in 12 goes to the task and is never pre-trained on

# Recognizing English prose in a docstring, and its markup.
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
WORD_SHARE = 0.9  # least share of plain words in a paragraph; formulas, signatures and tables have less
FUNCTION_WORD_SHARE = 0.25  # least share; running English has 40-50%, lists of names almost none


class CorpusOptions(StrictConfig):
    """The command line of `corpus.py`."""

    output: Path = RAW
    """folder for the text files, one per package"""
    task: Path = TASKS / "CoLA"
    """folder for the acceptability task, made of documents kept out of pre-training"""


def main(options: CorpusOptions) -> None:
    """Writes the corpus and the task; prints their sizes.

    Raises:
        ConfigError: the installed packages contain too little prose.
    """
    seen: set[str] = set()
    task_documents: list[str] = []
    size = count = 0
    files = {name: python_files(folder) for name, folder in sources().items()}
    with start_pool(cores()) as pool:
        assert pool is not None  # only ranks of an mpirun have none
        prose = dict(pool.run(prose_of, (path for paths in files.values() for path in paths)))
    options.output.mkdir(parents=True, exist_ok=True)
    for name, paths in files.items():
        corpus_documents: list[str] = []
        for document in documents(map(prose.__getitem__, paths), seen):
            (task_documents if is_set_aside(document) else corpus_documents).append(document)
        text = "".join(f"{document}\n\n" for document in corpus_documents)
        size += (options.output / f"{name}.txt").write_bytes(text.encode())
        count += len(corpus_documents)
    print(f"{options.output}: {size / 1e6:.1f} MB in {count:,} documents")
    if size < LEAST_CORPUS:
        raise ConfigError(
            f"{options.output}: got {size:,} bytes of prose, expected at least {LEAST_CORPUS:,}; "
            "use a Python in which the project is installed with its dependencies (`make .venv`)"
        )
    write_task("\n".join(task_documents), options.task)
    print(f"{options.task}: {TRAIN_SIZE:,} sentences for training, {DEV_SIZE:,} for scoring")


def sources() -> dict[str, Path]:
    """Returns the folders to take prose from, by name: the standard library and each installed one of `PACKAGES`."""
    found = {name: find_spec(name) for name in PACKAGES}  # imports nothing; also finds parent environments
    places = {name: spec.submodule_search_locations for name, spec in found.items() if spec}
    folders = {name: Path(next(iter(place))) for name, place in places.items() if place}
    return {"python": Path(sysconfig.get_paths()["stdlib"]), **folders}


def python_files(folder: Path) -> list[Path]:
    """Returns the Python files below `folder`, sorted by relative path, except in `SKIPPED_FOLDERS`."""
    relative = (path.relative_to(folder) for path in folder.rglob("*.py"))
    kept = (path for path in relative if not SKIPPED_FOLDERS.intersection(path.parts))
    return [folder / path for path in sorted(kept, key=Path.as_posix)]


def documents(files: Iterable[list[str]], seen: set[str]) -> Iterator[str]:
    """Yields one document per file, one paragraph per line; skips paragraphs in `seen` and adds new ones to it."""
    for paragraphs in files:
        fresh = [text for text in dict.fromkeys(paragraphs) if text not in seen]
        seen.update(fresh)
        document = "\n".join(fresh)
        if len(document) >= SHORTEST_DOCUMENT:
            yield document


def prose_of(path: Path) -> list[str]:
    """Returns the prose paragraphs of a source file's docstrings, in order."""
    gc.disable()  # a syntax tree has no cycles, and looking for them in all its nodes takes as long as parsing
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a template, or the syntax of another Python version
        return []
    strings: Iterable[str] = _docstrings(tree)
    if path.parts[-2:] == ("pydoc_data", "topics.py"):  # the language reference, kept as strings
        constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        strings = (value for value in constants if isinstance(value, str))
    return [paragraph for text in strings for paragraph in paragraphs(text)]


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    if docstring := ast.get_docstring(node):
        yield docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child)


def paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring that read as prose, each on one line and without markup."""
    return filter(is_prose, map(_plain, _blocks(text)))


def is_prose(paragraph: str) -> bool:
    """True if a paragraph reads as running English: whole sentences, plain words, enough function words."""
    if not paragraph[:1].isupper() or paragraph[-1] not in ".!?" or REFUSED.search(paragraph):
        return False
    tokens = paragraph.split()
    words = [token for token in tokens if WORD.fullmatch(token)]
    if len(tokens) < FEWEST_WORDS or len(words) < WORD_SHARE * len(tokens):
        return False
    function_words = sum(word.lower().rstrip(",.;:") in FUNCTION_WORDS for word in words)
    return function_words >= FUNCTION_WORD_SHARE * len(tokens)


def _blocks(text: str) -> Iterator[list[str]]:
    """Yields groups of adjacent lines with one indentation; blank lines separate groups, and a list item begins one."""
    blocks: list[list[str]] = [[]]
    indent = 0
    for raw in text.expandtabs().splitlines():
        item = BULLET.match(raw)
        line = " " * item.end() + raw[item.end() :] if item else raw
        line_indent = len(line) - len(line.lstrip())
        if item or not line.strip() or line_indent != indent:
            blocks.append([])
        if line.strip():
            blocks[-1].append(line.strip())
        indent = line_indent
    return filter(None, blocks)


def _plain(block: list[str]) -> str:
    """Returns the block as one line without reST or Markdown markup."""
    text = ROLE.sub(r"\1", " ".join(block))
    text = LINK.sub(lambda match: match[1] or match[2], text)
    return " ".join(MARKUP.sub("", text).split())


def is_set_aside(document: str) -> bool:
    """True if a document is reserved for the task; depends only on its text, not on what else is installed."""
    return int.from_bytes(hashlib.sha256(document.encode()).digest()[:8]) % SET_ASIDE_SHARE == 0


if __name__ == "__main__":
    run_script(main)
