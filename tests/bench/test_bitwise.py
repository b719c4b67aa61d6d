"""Claims about the bitwise comparison of two checkouts."""

import shutil
from pathlib import Path

import pytest

from bench.bitwise import BitwiseOptions, main
from tests.conftest import REPOSITORY


@pytest.mark.long
def test_equal_code_gives_equal_bits_and_a_changed_epsilon_does_not(shards_folder: Path, tmp_path: Path) -> None:
    for name in ("electra_sampler", "data_prep", "pretrain", "ds_configs"):
        shutil.copytree(REPOSITORY / name, tmp_path / "before" / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = BitwiseOptions(before=tmp_path / "before", data=shards_folder, cells=("electra/fp32/0",))
    assert main(options) == 0
    presets = tmp_path / "before/pretrain/presets.py"
    changed = presets.read_text().replace("initializer_range=0.1,", "initializer_range=0.1000001,")
    assert changed != presets.read_text()
    presets.write_text(changed)
    assert main(options) == 1
