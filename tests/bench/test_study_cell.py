"""Claims about the cells of a study: they belong to one text, prepared by any versions of the software."""

import json
import shutil
from pathlib import Path

import pytest

from bench.study.cell import content_sha256, require_same_text
from data_prep.manifest import MANIFEST_NAME
from foundation.config import ConfigError
from foundation.files import sealed, unsealed
from tests.bench.study_cells import add, make_cell


@pytest.fixture
def shards(shards_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shards_folder, tmp_path / "shards"))


def test_the_checksum_of_shards_is_of_their_content(shards: Path) -> None:
    before = content_sha256(shards)
    path = shards / MANIFEST_NAME
    values = json.loads(unsealed(path.read_bytes()))
    path.write_bytes(sealed(values | {"versions": {"python": "4.0"}}))
    assert content_sha256(shards) == before
    values["shards"][0]["written"][".bin"][1] = "0" * 64
    path.write_bytes(sealed(values))
    assert content_sha256(shards) != before


def test_cells_of_other_text_are_refused(shards: Path, tmp_path: Path) -> None:
    require_same_text(shards, add(tmp_path / "same", *make_cell("base", 0), text=content_sha256(shards)))
    with pytest.raises(ConfigError, match=r"input: .* differs from the shards of the cells in .*other/results\.json"):
        require_same_text(shards, add(tmp_path / "other", *make_cell("base", 0)))
