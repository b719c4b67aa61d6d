"""Claims about the model code that an export with relative position carries, where this project is not installed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pretrain.data.batches import Batch
from pretrain.huggingface.export import export
from pretrain.huggingface.folders import load_encoder
from pretrain.method.electra import Electra

ELSEWHERE = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("foundation", "data_prep", "pretrain", "finetune"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, NotInstalled())
import torch
from safetensors.torch import save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

out, inputs, results = sys.argv[1:]
inputs = torch.load(inputs, weights_only=True)
models = {
    "encoder": AutoModel.from_pretrained(out, trust_remote_code=True),
    "discriminator": AutoModelForPreTraining.from_pretrained(out, trust_remote_code=True),
    "generator": AutoModelForMaskedLM.from_pretrained(out + "/generator", trust_remote_code=True),
}
outputs = {name: model.eval()(**inputs)[0].detach().contiguous() for name, model in models.items()}
weights = {f"{name}/{key}": w.clone() for name, model in models.items() for key, w in model.state_dict().items()}
ids = torch.tensor(AutoTokenizer.from_pretrained(out)("yes no")["input_ids"])
models["discriminator"].save_pretrained(results + "-again")
save_file(outputs | weights | {"ids": ids}, results)
"""


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    from data_prep.tokens import open_tokenizer

    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "yes", "no")) + "\n")
    open_tokenizer(str(vocabulary)).save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_auto_model_loads_an_export_where_this_project_is_not_installed(
    make_electra: Callable[..., Electra], batch: Batch, tokenizer: Path, tmp_path: Path
) -> None:
    model = make_electra().eval()
    export(model, 0, tokenizer, "# card\n", tmp_path / "out")
    inputs = {
        "input_ids": batch.input_ids_BL,
        "attention_mask": batch.attention_mask_BL,
        "token_type_ids": batch.token_type_ids_BL,
    }
    torch.save(inputs, tmp_path / "inputs.pt")
    (tmp_path / "elsewhere").mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    process = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, tmp_path / "out", tmp_path / "inputs.pt", tmp_path / "results"],
        cwd=tmp_path / "elsewhere",
        env=environment | {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert process.returncode == 0, process.stderr
    from safetensors.torch import load_file

    results = load_file(tmp_path / "results")
    assert results["ids"].tolist() == [2, 5, 6, 3]
    visible = batch.attention_mask_BL
    encoded = model.discriminator(*inputs.values())
    projected = model.generator_predictions(model.generator(*inputs.values()))
    expected = {
        "encoder": encoded,
        "discriminator": model.discriminator_predictions(encoded),
        "generator": model.generator_lm_head(projected, model.generator.embeddings.word_embeddings),
    }
    for name, values in expected.items():
        assert (results[name] - values)[visible].abs().max().item() < 1e-5, name
    for name, weight in model.discriminator.state_dict().items():
        assert torch.equal(results[f"encoder/{name}"], weight)
        assert torch.equal(results[f"discriminator/electra.{name}"], weight)
    for name, weight in model.generator.state_dict().items():
        assert torch.equal(results[f"generator/electra.{name}"], weight)
    again = load_encoder(tmp_path / "results-again").state_dict()  # saved by Hugging Face, read by us
    assert all(torch.equal(again[name], weight) for name, weight in model.discriminator.state_dict().items())


def test_the_carried_code_names_no_module_of_this_project(
    make_electra: Callable[..., Electra], tokenizer: Path, tmp_path: Path
) -> None:
    export(make_electra(), 0, tokenizer, "# card\n", tmp_path / "out")
    for folder in (tmp_path / "out", tmp_path / "out" / "generator"):
        mapped = set(json.loads((folder / "config.json").read_text())["auto_map"].values())
        code = (folder / "exported_model.py").read_text()
        assert all(f"class {name.split('.')[1]}(" in code for name in mapped)
        for path in folder.glob("*.py"):
            assert "from pretrain" not in path.read_text()
            assert "from data_prep" not in path.read_text()
