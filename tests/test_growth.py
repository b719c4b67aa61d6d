"""The guard: nothing that a user or reader has to know is added unseen, and no package grows."""

from tests.growth import FROZEN, concepts, sizes

LINES = FROZEN.read_text().splitlines()


def test_commands_options_settings_objectives_files_and_pages_are_the_frozen_ones() -> None:
    """`python -m tests.growth` writes the list again; the commit says what an added line replaces, or who asked."""
    assert [*concepts()] == [line for line in LINES if not line.startswith("statements ")]


def test_no_package_has_more_statements() -> None:
    most = {name: int(size) for name, size in (line.split()[1:] for line in LINES if line.startswith("statements "))}
    assert not {name: size for name, size in sizes().items() if size > most[name]}
