"""Claims about the documentation: commands and overrides on its pages are valid."""

import re
from collections.abc import Iterator

import pytest

from pretrain.config import with_overrides
from pretrain.engine.deepspeed_config import OVERRIDE, read
from pretrain.presets import PRESETS
from tests.conftest import REPOSITORY

PAGES = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md"), REPOSITORY / "ds_configs/README.md"]
OVERRIDES = re.compile(r"--set((?: [\w.]+=[^\s`]+)+)")


def documented() -> Iterator[tuple[str, str]]:
    """Overrides of each `--set`, with the presets they are for: the one named beside them, or all."""
    for page in PAGES:
        for line in page.read_text().replace("\\\n", " ").splitlines():
            named = re.findall(r"--preset (\w+)", line) or PRESETS
            given = [overrides.strip() for overrides in OVERRIDES.findall(line) if "KEY=VALUE" not in overrides]
            yield from ((preset, overrides) for overrides in given for preset in named)


@pytest.mark.parametrize(("preset", "overrides"), sorted(set(documented())))
def test_overrides_on_a_page_are_valid(preset: str, overrides: str) -> None:
    of_deepspeed = [override for override in overrides.split() if override.startswith(OVERRIDE)]
    with_overrides(PRESETS[preset].run, [other for other in overrides.split() if other not in of_deepspeed])
    read(REPOSITORY / PRESETS[preset].deepspeed_config, of_deepspeed)
