"""Claims about the input and output of an evaluation; whole evaluations are in tests/pretrain/test_evaluate.py."""

import shutil
from pathlib import Path

import pytest
import torch

from electra_sampler.foundation.config import ConfigError
from pretrain.analysis.evaluation import HeldOut, one_line, open_matching
from pretrain.analysis.symptoms import SkippedCheck, Symptoms
from pretrain.data.shards import Shards
from pretrain.presets import TINY
from pretrain.runs.folder import write_run
from pretrain.runs.log import RunLog
from pretrain.runs.models import build_model
from tests.pretrain.runs.described import described


def test_the_first_sequences_are_read_in_order_with_the_same_masks_and_uniforms_for_any_batch_size(
    shards_folder: Path,
) -> None:
    read = []
    for size in (3, 10):
        batches = HeldOut(Shards(shards_folder), 10, size, torch.device("cpu")).batches()
        read.append([torch.cat(parts) for parts in list(zip(*batches, strict=True))[:7]])
    assert len(read[0][0]) == 10 and all(map(torch.equal, *read))


def test_the_unigram_entropy_does_not_depend_on_how_few_sequences_are_evaluated(shards_folder: Path) -> None:
    shards = Shards(shards_folder)
    few, all_of_them = (HeldOut(shards, number, 8, torch.device("cpu")) for number in (2, len(shards)))
    assert few.unigram_entropy() == all_of_them.unigram_entropy()


def test_the_summary_line_names_the_existing_correlations() -> None:
    result: dict[str, object] = {"mlm_loss": 2.0, "mlm_accuracy": 0.5}
    assert one_line(result) == "MLM loss 2.000, accuracy 0.500"
    result |= {"detection": {}, "discriminator_loss": 0.3, "discriminator_entropy": 0.4}
    line = one_line(result | {"estimate_correlation": {"original": None, "replaced": 0.61, "all": 0.64}})
    assert line.endswith("replaced share 0.750; correlation of the estimate replaced 0.610, all 0.640")
    assert one_line(result | {"estimate_correlation": {"all": None}}).endswith("replaced share 0.750")


def test_no_reader_of_a_runs_data_takes_other_shards_at_its_path_where_the_held_out_text_was_trained_on(
    shards_folder: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(shards_folder, tmp_path / "shards")
    description = described(TINY, Shards(data))
    write_run(tmp_path / "run", description, {})
    log = RunLog(tmp_path / "run", step=0, total_steps=1)
    log.write("train", 1, {})
    log.close()
    text = build_model(description).text
    assert text is not None
    readers = (
        lambda: open_matching(None, description),
        text,
        lambda: Symptoms(tmp_path / "run").text,
    )
    for read in readers:
        read()
    data.rename(tmp_path / "before")
    with pytest.raises(ConfigError, match=f"data: cannot read {data}, the run's shards .*; work in the folder where"):
        open_matching(None, description)
    shutil.copytree(shards_folder / "held_out", data)
    shutil.copytree(shards_folder, data / "held_out", ignore=shutil.ignore_patterns("held_out"))
    for read in readers:
        with pytest.raises((ConfigError, SkippedCheck), match=f"data: {data} has other shards than the run"):
            read()
    assert open_matching(shards_folder / "held_out", description)
