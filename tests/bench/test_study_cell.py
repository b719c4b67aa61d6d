"""Claims about the cells of a study: they belong to one text, prepared by any versions of the software."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.study.cell import content_sha256, language_numbers, require_same_text
from data_prep.manifest import MANIFEST_NAME
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.files import sealed, unsealed
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


def test_a_language_is_measured_by_its_far_pairs_over_all_checkpoints() -> None:
    checkpoints: dict[str, Any] = {
        "1000": {
            "exact": {"distance from p": 0.1},
            "right": {"discriminator": [0, 1, 1, 1], "generator": [1, 1, 0, 0.5]},
        },
        "100": {"exact": {"distance from p": 0.5}, "right": {"discriminator": [1, 0, 0, 0.5]}},
        "200": {"exact": {"distance from p": 0.3}, "right": {"discriminator": [1, 1, 0.9, 0.5]}},
    }
    terms = ["verb, 1 phrases", "verb, 2 phrases", "particle, 3 phrases", "verb, 2 phrases"]
    numbers, examples = language_numbers({"terms": terms, "steps": checkpoints})
    assert numbers == {
        "distance from p": 0.1,
        "agreement": pytest.approx((50 + 240 + 300) / 9),
        "agreement at the end": 100,
        "agreement, particle, 3 phrases": 100,
        "agreement, verb, 1 phrases": 0,
        "agreement, verb, 2 phrases": 100,
        "steps to 75%": 200,
        "steps to 90%": 1000,
        "generator's agreement": 50,
    }
    assert [50 * column["right"].mean() for column in examples.values()] == pytest.approx(
        [numbers["agreement"], numbers["agreement at the end"]]
    )
    del checkpoints["1000"]["right"]["discriminator"], checkpoints["100"], checkpoints["200"]
    numbers, _ = language_numbers({"terms": terms, "steps": checkpoints})
    assert numbers["agreement at the end"] == numbers["generator's agreement"] == 50
    assert numbers["steps to 75%"] is None
