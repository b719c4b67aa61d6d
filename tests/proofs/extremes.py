"""Extreme values that nobody sets on purpose, and the form of the errors that refuse them."""

from electra_sampler.foundation.config import ConfigError

TEXTS = [
    *("0", "-1", "1", "17", "0.5", "-0.0", "1e30", "-1e308", "1e308", "1e400", "1e-300", "nan", "NaN", "Infinity"),
    *(str(2**31), str(2**63), "1" + "0" * 400, "9" * 5000),
    *("true", "null", "", '""', "x", "[]", "[1]", "[0.5, 1e-320]", "[NaN, 1]", "[true, 0.9]", "{}", '{"a": 1}'),
    *("y" * 100_000, "[" * 100_000, "größe ☃", "\udc80", '"\\ud800"', "two\nlines", "\x1b[31mred"),
]
"""Values as typed after `--set key=`."""
LONGEST = 700
"""Most characters in an error message."""


def assert_clear(error: ConfigError, *named: str) -> None:
    """Asserts that each problem is one line of text that names the field, its value and the remedy."""
    assert error.problems
    for problem in error.problems:
        assert problem.isprintable() and len(problem) < LONGEST, ascii(problem[:1000])
        assert any(
            word in problem
            for word in ("got ", "missing", "unknown key", "not valid", "--", "required", "true without")
        ), problem
        assert any(word in problem for word in ("expected", ";")), problem
    assert any(name in problem for problem in error.problems for name in named), error.problems
