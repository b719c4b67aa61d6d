"""electra_sampler/foundation/markdown_table.py: a header, a rule, and one line per row."""

from electra_sampler.foundation.markdown_table import markdown_table


def test_a_table_is_its_header_a_rule_and_its_rows() -> None:
    rows = (row for row in (("MLM loss", "6.65"), ["AUC", ".73"]))
    assert markdown_table(("", "value"), rows) == ["|  | value |", "|---|---|", "| MLM loss | 6.65 |", "| AUC | .73 |"]


def test_a_table_without_rows_is_its_header() -> None:
    assert markdown_table(["task", "model", "setting"], []) == ["| task | model | setting |", "|---|---|---|"]
