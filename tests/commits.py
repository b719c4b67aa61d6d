"""Checks commit messages: one subject in the imperative, and a body that says why if more than a few lines change.

Run: python -m tests.commits FILE      on the message in a file and what is staged: pre-commit's hook `commit-msg`
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import REPOSITORY

LONGEST_SUBJECT = 72
MOST_LINES = 3
"""Changed lines above which a body must say why."""
NO_IMPERATIVE = re.compile(r"an?|the|(?!(?:embed|feed|need|seed|shed|speed|bring)$)\w+(?:ed|ing)", re.IGNORECASE)
"""First words that are articles, or past tenses and gerunds by their endings."""


def problems(message: str, changed: int) -> Iterator[str]:
    """Yields what is wrong with the message of a commit that changes this many lines."""
    subject, _, body = message.partition("\n")
    if len(subject) > LONGEST_SUBJECT:
        yield f"the subject has {len(subject)} characters, expected at most {LONGEST_SUBJECT}"
    if ";" in subject:
        yield 'the subject joins changes by ";", expected a commit of each'
    if NO_IMPERATIVE.fullmatch(first := subject.partition(" ")[0]):
        yield f"the subject begins with {first!r}, expected an imperative"
    if changed > MOST_LINES and not body.strip():
        yield f"{changed} lines change without a body, expected one that says why"


def git(*arguments: str) -> str:
    """Returns what a command of git prints in this repository."""
    command = ("git", "-c", "safe.directory=*", *arguments)  # the checkout may be another user's
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout


def lines_of(numstat: str) -> int:
    """Returns the number of added and removed lines; git counts none of a binary file."""
    return sum(int(count) for line in numstat.splitlines() for count in line.split("\t")[:2] if count.isdigit())


if __name__ == "__main__":
    written = [line for line in Path(sys.argv[1]).read_text().splitlines() if not line.startswith("#")]
    found = [*problems("\n".join(written).strip(), lines_of(git("diff", "--cached", "--numstat")))]
    sys.exit("\n".join(found) if found else 0)
