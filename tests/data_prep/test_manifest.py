"""Claims about the manifest."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_prep.manifest import Books, Ledger, Manifest, enough_to_hold_out, load_manifest, save_manifest
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.files import sealed


def test_a_manifest_survives_saving_and_loading(built: Path, tmp_path: Path) -> None:
    save_manifest(load_manifest(built), tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == (built / "manifest.json").read_bytes()


def test_ledgers_add_up_and_know_whether_they_balance() -> None:
    ledger = Ledger(read=5, train=3, held_out=1, dropped={"empty": 1}) + Ledger(read=2, train=1, dropped={"short": 1})
    assert ledger == Ledger(read=7, train=4, held_out=1, dropped={"empty": 1, "short": 1})
    assert Books(documents=ledger).balances
    assert not Books(documents=ledger, characters=Ledger(read=1)).balances
    assert sum([Books(documents=ledger), Books(invalid_utf8=3)], Books()) == Books(documents=ledger, invalid_utf8=3)


def test_the_padding_is_the_share_of_the_sequences_that_no_token_fills(built: Path) -> None:
    manifest = load_manifest(built)
    filled = manifest.totals.tokens / (manifest.totals.sequences * manifest.seq_length)
    assert manifest.totals.padding_share == pytest.approx(1 - filled)


def test_a_folder_without_a_manifest_is_an_unfinished_build_or_no_folder_of_shards(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        command = f"build_shards.py --output {folder}, or, if it holds text, with --input {folder}"
        with pytest.raises(ConfigError, match=f"{folder} is not a complete shard folder: .*{command}"):
            load_manifest(folder)


@pytest.mark.parametrize("documents", [2, 3, 6, 16, 40, 999, 1000, 10**6])
def test_the_share_to_hold_out_of_a_corpus_leaves_at_least_half_and_rarely_nothing(documents: int) -> None:
    share = enough_to_hold_out(documents)
    assert share <= 0.5 and (1 - share) ** documents <= 0.25
    assert documents < 1000 or share == 0.005


Values = dict[str, Any]


def with_shard(values: Values, **changes: object) -> Values:
    return values | {"shards": [values["shards"][0] | changes, *values["shards"][1:]]}


def with_empty(values: Values, shards: list[Values]) -> Values:
    return values | {"shards": shards, "totals": values["totals"] | {"sequences": 0, "tokens": 0}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda values: values | {"format_version": 99}, "format_version is 99, expected 2; build"),
        (lambda values: values | {"surprise": 1}, "damaged"),
        (lambda values: {name: value for name, value in values.items() if name != "shards"}, "damaged"),
        (lambda values: values | {"format_version": "2"}, "damaged"),
        (lambda values: values | {"vocab_size": 10**12}, "damaged .vocab_size: .*65536"),
        (lambda values: values | {"vocab_size": 4}, "damaged .*distinct ids of its vocabulary"),
        (lambda values: values | {"special_tokens": values["special_tokens"] | {"mask": 3}}, "damaged .*distinct ids"),
        (lambda values: values | {"totals": values["totals"] | {"sequences": 5}}, "damaged .*sums of its shards"),
        (lambda values: values | {"totals": values["totals"] | {"ngrams": [10**400, 1 - 10**400]}}, "totals.ngrams"),
        (lambda values: values | {"totals": values["totals"] | {"padding_share": float("nan")}}, "padding_share"),
        (lambda values: with_empty(values, []), "shards: .*at least 1"),
        (
            lambda values: with_empty(values, [values["shards"][0] | {"sequences": 0, "tokens": 0}]),
            "shards.0.sequences",
        ),
        (lambda values: values | {"tokenizer_files": {}}, "tokenizer_files"),
        (lambda values: values | {"tokenizer_files": {"../../x": "0"}}, "tokenizer_files"),
        (lambda values: values | {"tokenizer_files": {"a" * 5000: "0"}}, "tokenizer_files"),
        (lambda values: values | {"config": values["config"] | {"ngram": []}}, "ngram: .*at least 1 item"),
        (lambda values: values | {"config": values["config"] | {"ngram": [0.001] * 1000}}, "ngram: .*at most 100"),
        (
            lambda values: values | {"books": values["books"] | {"inputs": {"a": {"word_pieces": 10**400}}}},
            "books.inputs.a.word_pieces",
        ),
        (lambda values: with_shard(values, name="../shard-00000"), "shards.0.name"),
        (lambda values: with_shard(values, name="shard-00000\n"), "shards.0.name"),
        (lambda values: with_shard(values, name="shard-" + "0" * 5000), "shards.0.name"),
        (lambda values: with_shard(values, name="shard-00001"), "two of its shards have the same name"),
        (lambda values: with_shard(values, written={}), "shards.0.written"),
        (lambda values: with_shard(values, written={"/../../x": [1, "0"]}), "shards.0.written"),
        (lambda values: with_shard(values, written={"\0": [1, "0"]}), "shards.0.written"),
        (lambda values: with_shard(values, written={"a" * 5000: [1, "0"]}), "shards.0.written"),
        *((lambda values, name=name: values | {name: None}, "damaged") for name in Manifest.model_fields),
    ],
)
def test_another_format_or_damage_is_one_clear_line(
    built: Path, tmp_path: Path, change: Callable[[Values], Values], reason: str
) -> None:
    values = json.loads((built / "manifest.json").read_text())
    del values["sha256"]
    (tmp_path / "manifest.json").write_bytes(sealed(change(values)))
    with pytest.raises(ConfigError, match=reason) as caught:
        load_manifest(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_a_manifest_nested_too_deeply_is_one_clear_line(tmp_path: Path) -> None:
    content = b'{"sha256": "%s", "x": ' % (b"0" * 64) + b"[" * 100_000 + b"]" * 100_000 + b"}"
    content = content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"manifest\.json: damaged .*recursion"):
        load_manifest(tmp_path)
