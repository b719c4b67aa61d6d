"""Claims about verifying a folder on several workers; what is found wrong is in test_inspect_shards.py."""

import shutil

import numpy as np
import pytest

from data_prep.manifest import load_manifest
from data_prep.verification import verify
from data_prep.workers import start_pool


@pytest.fixture(scope="module")
def alone(built):
    with start_pool(1) as pool:
        return verify(built, load_manifest(built), pool)


def test_every_sequence_is_counted_whatever_the_number_of_workers(built, alone):
    manifest = load_manifest(built)
    assert len(manifest.shards) > 1
    with start_pool(2) as pool:
        several = verify(built, manifest, pool)
    assert alone.problems == several.problems == []
    assert alone.figures.sequences == manifest.totals.sequences
    for ours, theirs in ((alone.figures, several.figures), (alone.masks, several.masks)):
        for name, value in vars(ours).items():
            np.testing.assert_array_equal(value, getattr(theirs, name), name)


def test_damage_in_several_shards_is_told_in_their_order(built, tmp_path):
    copy = shutil.copytree(built, tmp_path / "copy")
    manifest = load_manifest(copy)
    damaged = [manifest.shards[number].name for number in (0, -1)]
    for name in damaged:
        with (copy / f"{name}.bin").open("r+b") as file:
            file.write(b"\xff\xff")
    with start_pool(2) as pool:
        found = verify(copy, manifest, pool).problems
    assert [problem.split(":")[0] for problem in found[:2]] == [str(copy / name) for name in damaged]
    assert all("changed since it was written (sha256)" in problem for problem in found[:2])
