"""foundation/settings.py: each key with its value in the notation of `--set` and its description, in columns."""

from typing import Literal

from electra_sampler.foundation.config import StrictConfig
from electra_sampler.foundation.settings import WIDTH, settings_tables


class Inner(StrictConfig):
    kind: Literal["only"] = "only"
    """one value: no setting"""
    rate: float = 1e-6
    """how fast,
    and how far"""


class Outer(StrictConfig):
    inner: Inner
    other: Inner | None = None
    betas: tuple[float, float] = (0.9, 0.5)
    """of both"""
    is_long: bool = False
    """word word word word word word word word word
    word word word word word word word word word
    word word word word word word word word word
    word word word word word word word word word"""
    name: str = "plain"
    """of it"""


def test_each_section_has_its_own_columns_and_a_missing_section_shows_its_keys() -> None:
    first, *others = settings_tables(Outer, Outer(inner=Inner()), "of.")
    lines = first.splitlines()
    assert lines[0] == "of.betas    [0.9,0.5]  of both"
    assert lines[-1] == "of.name     plain      of it"
    assert others == ["of.inner.rate  1e-06  how fast, and how far", "of.other.rate  null  how fast, and how far"]


def test_a_long_description_continues_below_its_beginning() -> None:
    lines = settings_tables(Outer, Outer(inner=Inner()))[0].splitlines()
    assert lines[1].startswith("is_long  false      word word") and lines[2].startswith(" " * 20 + "word")
    assert max(map(len, lines)) <= WIDTH
