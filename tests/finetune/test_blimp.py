"""Claims about `blimp.py`."""

import json
from pathlib import Path
from typing import Any

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.blimp import BlimpOptions, main
from tests.finetune.conftest import entry, untrained_run, write_pairs


def test_models_are_tabulated_beside_untrained_ones(
    stock_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_pairs(tmp_path / "data", entry(), entry("word1 word2", "word2 bad ,", "semantics"))
    main(BlimpOptions(models=(str(stock_model),), data=data, random_weights=True, output=tmp_path / "out"))
    table = (tmp_path / "out" / "blimp.md").read_text()
    assert capsys.readouterr().out == table
    assert f"| {stock_model} discriminator | {stock_model} (random weights) discriminator |" in table
    assert [line.split("|")[1].strip() for line in table.splitlines()[4:]] == [
        "**all**",
        "**semantics**",
        "**syntax**",
        "binding",
    ]
    assert json.loads((tmp_path / "out" / "blimp.json").read_text())["pairs"] == 2


def test_a_run_and_its_untrained_twin_have_columns_of_their_own(shards_folder: Path, tmp_path: Path) -> None:
    run, data = (
        untrained_run(tmp_path / "run", shards_folder, "tiny", "electra"),
        write_pairs(tmp_path / "data", entry()),
    )
    main(BlimpOptions(models=(str(run),), data=data, random_weights=True, output=tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "blimp.json").read_text())["models"]
    labels = [f"{run}{twin} {kind}" for twin in ("", " (random weights)") for kind in ("discriminator", "generator")]
    assert [*found] == labels


def test_results_are_replaced_by_the_same_command_and_no_other(stock_model: Path, tmp_path: Path) -> None:
    data, output = write_pairs(tmp_path / "data", entry()), tmp_path / "out"
    same: dict[str, Any] = {"models": (str(stock_model),), "data": data, "output": output, "score": ("discriminator",)}
    for _ in range(2):
        main(BlimpOptions(**same))
    kept = {path.name: path.read_bytes() for path in output.iterdir()}
    for change in ({"models": ("another",)}, {"score": ("generator",)}):
        with pytest.raises(ConfigError, match=r"output: .*blimp\.json was not written by this command"):
            main(BlimpOptions(**same | change))
    assert {path.name: path.read_bytes() for path in output.iterdir()} == kept
    (output / "blimp.json").unlink()
    for name in kept.keys() - {"blimp.json"}:
        (output / name).write_text("mine")
        with pytest.raises(ConfigError, match=f"output: .*{name} was not written by this command"):
            main(BlimpOptions(**same))
        (output / name).unlink()
