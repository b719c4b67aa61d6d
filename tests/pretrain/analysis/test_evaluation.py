"""Claims about the input and output of an evaluation; whole evaluations are in tests/pretrain/test_evaluate.py."""

from pathlib import Path

import torch

from pretrain.analysis.evaluation import HeldOut, one_line
from pretrain.data.shards import Shards


def test_the_first_sequences_are_read_in_order_for_any_batch_size(shards_folder: Path) -> None:
    shards, cpu = Shards(shards_folder), torch.device("cpu")
    read = []
    for size in (3, 10):
        batches = [*HeldOut(shards, 10, size, cpu).batches()]
        assert sum(len(batch.input_ids_BL) for batch in batches) == 10
        read.append([token for batch in batches for token in batch.input_ids_BL[batch.attention_mask_BL].tolist()])
    assert read[0] == read[1]


def test_the_summary_line_names_the_existing_correlations() -> None:
    result = {"mlm_loss": 2.0, "mlm_accuracy": 0.5}
    assert one_line(result) == "MLM loss 2.000, accuracy 0.500"
    result |= {"detection": {}, "discriminator_loss": 0.3, "discriminator_entropy": 0.4}
    line = one_line(result | {"estimate_correlation": {"original": None, "replaced": 0.61, "all": 0.64}})
    assert line.endswith("replaced share 0.750; correlation of the estimate replaced 0.610, all 0.640")
    assert one_line(result | {"estimate_correlation": {"all": None}}).endswith("replaced share 0.750")
