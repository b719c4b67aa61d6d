"""Claims about the steps of a build."""

import json

import pytest

from data_prep.build_shards import BuildOptions, main
from data_prep.manifest import load_manifest
from foundation.config import ConfigError
from tests.data_prep.conftest import contents


@pytest.fixture
def case(options, tmp_path):
    """A build of one long file, which can be truncated."""
    text = "\n\n".join(path.read_text() for path in sorted(options.input[0].iterdir()))
    (tmp_path / "in.txt").write_text(text)
    return BuildOptions(**(options.model_dump() | {"input": (tmp_path / "in.txt",), "output": tmp_path / "out"}))


def test_parts_are_removed_once_they_are_merged(case, monkeypatch):
    """During the build, parts remain only for shards that are not full yet and for chunks finished out of order."""
    seen = []

    def merge(task, config, output):
        entry = merge_parts(task, config, output)
        seen.append(len(list((output / ".build").glob("train-*.part"))))
        return entry

    from data_prep.parts import merge_parts

    monkeypatch.setattr("data_prep.building.merge_parts", merge)
    assert main(case) == 0
    most_in_a_shard = max(shard.last_chunk - shard.first_chunk + 1 for shard in load_manifest(case.output).shards)
    assert len(seen) > 5
    assert max(seen) <= most_in_a_shard + 2
    assert not (case.output / ".build").exists()


def test_a_lost_record_costs_only_its_chunk(case, monkeypatch):
    from data_prep.pipeline import build_chunk

    assert main(case) == 0
    before = contents(case.output)
    log = case.output / "records.log"
    lines = log.read_bytes().splitlines(keepends=True)
    assert lines[4].split()[1:3] == [b"chunk", b"3"]
    lines[4] = lines[4].replace(b"chunk 3", b"chunk 4")
    log.write_bytes(b"".join(lines))
    built = []
    monkeypatch.setattr(
        "data_prep.pipeline.build_chunk", lambda chunk, *rest: built.append(chunk.number) or build_chunk(chunk, *rest)
    )
    assert main(case) == 0
    assert built == [3]
    assert contents(case.output) == before


def test_changed_duplicates_are_noticed_even_if_their_chunk_is_unchanged(options, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("Kalo mi ne.\n\nRu so ta.")
    (folder / "b.txt").write_text("Kalo mi ne.\n\nVu lo.")
    changes = {"input": (folder,), "output": tmp_path / "out", "dedup": "exact", "held_out": 0.0, "chunk_mb": 2e-5}
    case = BuildOptions(**(options.model_dump() | changes))
    assert main(case) == 0
    assert load_manifest(case.output).books.documents.dropped == {"duplicate": 1}
    assert main(case) == 0
    (folder / "a.txt").write_text("Kalo mi lo.\n\nRu so ta.")
    with pytest.raises(ConfigError, match=r"text of .* has changed since .* was built from it"):
        main(case)


def test_a_manifest_lists_nothing_twice(built):
    values = json.loads((built / "manifest.json").read_text())
    assert not set(values) & set(values["config"])
