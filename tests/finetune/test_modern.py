"""Claims about fine-tuning a stock ModernBERT, as which a modern encoder is exported."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, ModernBertConfig, ModernBertForTokenClassification

from finetune.config import GlueOptions, SquadOptions, TaggingOptions
from finetune.running.records import read_records
from foundation.config import ConfigError
from tests.finetune.conftest import run_queue


@pytest.fixture(scope="module")
def modern_model(stock_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modern")
    tokenizer = AutoTokenizer.from_pretrained(stock_model)
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2}
    config = ModernBertConfig(vocab_size=len(tokenizer), num_labels=1, local_attention=8, pad_token_id=0, **sizes)
    torch.manual_seed(0)
    ModernBertForTokenClassification(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("options", "task", "data"),
    [
        (GlueOptions, ("CoLA",), "cola_folder"),
        (SquadOptions, None, "squad_folder"),
        (TaggingOptions, "NER", "tagging_folder"),
    ],
    ids=["GLUE", "SQuAD", "tagging"],
)
def test_it_learns_every_kind_of_task(
    modern_model: Path, options: type, task: object, data: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    given = {
        "model": str(modern_model),
        "data_dir": str(request.getfixturevalue(data)),
        "output": tmp_path,
        "seeds": (1,),
    }
    given |= {"epochs": 4, "batch_size": 8, "learning_rate": 1e-2, "keep": "none"} | ({"task": task} if task else {})
    run_queue(options.from_values(given))
    (record,) = read_records(tmp_path / "results.jsonl")
    first, *_, last = record.train_losses
    assert first is not None and last is not None and last < first / 2


def test_keeping_a_fine_tuned_one_is_refused(modern_model: Path, cola_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keep: got median, but .* is a ModernBERT"):
        run_queue(
            GlueOptions.from_values({"model": str(modern_model), "data_dir": str(cola_folder), "output": tmp_path})
        )
