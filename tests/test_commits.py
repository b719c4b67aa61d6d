"""Claims about the history: since the hook exists, every commit says one thing, and why."""

import pytest

from tests.commits import git, lines_of, problems
from tests.conftest import REPOSITORY, needs


def test_every_commit_since_the_hook_has_one_subject_and_says_why() -> None:
    """Merges aside; a shallow clone shows only its newest commits."""
    needs("git")
    if not (REPOSITORY / ".git").exists():
        pytest.skip("needs a clone: this is a copy without history")
    hook = git("log", "--diff-filter=A", "--format=%H", "--", "tests/commits.py").split()
    found = {}
    for commit in git("rev-list", "--no-merges", f"{hook[-1]}..HEAD").split() if hook else ():
        message, changed = (
            git("show", "--no-patch", "--format=%B", commit),
            git("show", "--numstat", "--format=", commit),
        )
        found[f"{commit[:8]} {message.splitlines()[0]}"] = [*problems(message, lines_of(changed))]
    assert not {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.parametrize(
    ("message", "changed", "wrong"),
    [
        ("Need one thing only", 3, ""),
        ("Bound a step's loss\n\nIt could overflow.", 400, ""),
        ("Bound a step's loss", 4, "4 lines change without a body"),
        ("Bound a loss; rename a test\n\nWhy.", 9, "joins changes"),
        ("A loss that is bounded\n\nWhy.", 9, "begins with 'A'"),
        ("Fixed a loss\n\nWhy.", 9, "begins with 'Fixed'"),
        ("Fixing a loss\n\nWhy.", 9, "begins with 'Fixing'"),
        (f"Bound {'a' * 67}\n\nWhy.", 9, "has 73 characters"),
    ],
)
def test_a_message_is_judged_by_its_subject_and_its_body(message: str, changed: int, wrong: str) -> None:
    found = [*problems(message, changed)]
    assert [problem for problem in found if wrong not in problem] == [] and bool(found) == bool(wrong)
