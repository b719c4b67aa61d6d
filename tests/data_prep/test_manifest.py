"""Claims about the manifest."""

import json

import pytest

from data_prep.config import ConfigError
from data_prep.manifest import Books, Ledger, load_manifest, save_manifest


def test_a_manifest_survives_saving_and_loading(built, tmp_path):
    manifest = load_manifest(built)
    save_manifest(manifest, tmp_path)
    assert load_manifest(tmp_path) == manifest
    assert (tmp_path / "manifest.json").read_bytes() == (built / "manifest.json").read_bytes()


def test_ledgers_add_up_and_know_whether_they_balance():
    ledger = Ledger(read=5, train=3, held_out=1, dropped={"empty": 1}) + Ledger(read=2, train=1, dropped={"short": 1})
    assert ledger == Ledger(read=7, train=4, held_out=1, dropped={"empty": 1, "short": 1})
    assert ledger.balances
    assert not (ledger + Ledger(read=1)).balances
    assert sum([Books(documents=ledger), Books(invalid_utf8=3)], Books()) == Books(documents=ledger, invalid_utf8=3)


def test_totals_are_those_of_the_shards(built):
    manifest = load_manifest(built)
    assert len(manifest.shards) > 3
    assert manifest.totals.tokens == sum(shard.tokens for shard in manifest.shards)
    assert manifest.totals.sequences == sum(shard.sequences for shard in manifest.shards)
    filled = manifest.totals.tokens / (manifest.totals.sequences * manifest.seq_length)
    assert manifest.totals.padding_share == pytest.approx(1 - filled)


def test_a_folder_without_a_manifest_is_not_complete(tmp_path):
    with pytest.raises(ConfigError, match="is not complete"):
        load_manifest(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        load_manifest(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda values: values | {"format_version": 99}, "format_version is 99, expected 1"),
        (lambda values: values | {"surprise": 1}, "damaged"),
        (lambda values: {name: value for name, value in values.items() if name != "shards"}, "damaged"),
        (lambda values: [values], "damaged"),
    ],
)
def test_another_format_or_damage_is_one_clear_line(built, tmp_path, change, reason):
    values = json.loads((built / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(change(values)))
    with pytest.raises(ConfigError, match=reason) as caught:
        load_manifest(tmp_path)
    assert "\n" not in str(caught.value)


def test_junk_is_one_clear_line(tmp_path):
    (tmp_path / "manifest.json").write_bytes(b"\xff\x00")
    with pytest.raises(ConfigError, match="damaged"):
        load_manifest(tmp_path)
