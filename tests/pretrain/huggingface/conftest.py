"""Shared by the tests of exports: a tokenizer to export, and a batch in Hugging Face's names."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from data_prep.tokens import open_tokenizer
from pretrain.data.batches import Batch
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import make_plan
from pretrain.runs.models import initial_model

assert_bitwise = partial(torch.testing.assert_close, rtol=0, atol=0)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "yes", "no")) + "\n")
    open_tokenizer(str(vocabulary)).save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.fixture
def inputs(batch: Batch) -> dict[str, torch.Tensor]:
    return {
        "input_ids": batch.input_ids_BL,
        "attention_mask": batch.attention_mask_BL,
        "token_type_ids": batch.token_type_ids_BL,
    }


def start(shards: Path, init_from: tuple[str, ...], **changes: object) -> Any:
    """The model with which a run begins."""
    plan = make_plan(options(shards, init_from, **changes))
    return initial_model(plan.description, plan.donors)


def options(shards: Path, init_from: tuple[str, ...], **changes: object) -> RunOptions:
    values = {"preset": "tiny", "data": (shards,), "output": shards / "none", "init_from": init_from, **changes}
    return RunOptions.from_values(values)


def change_config(folder: str | Path, changes: dict[str, Any]) -> None:
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder: str | Path, changes: dict[str, torch.Tensor]) -> None:
    """Adds these weights, or replaces those of the same names."""
    path = Path(folder) / "model.safetensors"
    save_file(load_file(path) | changes, path, {"format": "pt"})
