"""Formats tables in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table: header, separator, rows."""
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
