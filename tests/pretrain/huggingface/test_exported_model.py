"""Claims about the model code in exports with relative positions, without this project installed."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from pretrain.data.batches import Batch
from pretrain.huggingface.export import export
from pretrain.huggingface.exported_model import (
    ElectraSamplerConfig,
    ElectraSamplerForMaskedLM,
    ElectraSamplerForPreTraining,
)
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


def test_auto_model_loads_an_export_where_this_project_is_not_installed(
    make_electra: Callable[..., Electra],
    batch: Batch,
    inputs: dict[str, torch.Tensor],
    tokenizer: Path,
    tmp_path: Path,
) -> None:
    model = make_electra().eval()
    export(model, 0, tokenizer, "# card\n", tmp_path / "out")
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
    again = load_encoder(tmp_path / "results-again").state_dict()  # saved by Hugging Face, read by this project
    assert all(torch.equal(again[name], weight) for name, weight in model.discriminator.state_dict().items())


def test_the_code_in_an_export_is_one_file_that_imports_only_torch_and_transformers(
    make_electra: Callable[..., Electra], tokenizer: Path, tmp_path: Path
) -> None:
    export(make_electra(), 0, tokenizer, "# card\n", tmp_path / "out")
    for folder in (tmp_path / "out", tmp_path / "out" / "generator"):
        (path,) = folder.rglob("*.py") if folder.name == "generator" else folder.glob("*.py")
        body = ast.parse(path.read_text()).body
        imported = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
        imported += [str(node.module) for node in body if isinstance(node, ast.ImportFrom)]
        assert {name.split(".")[0] for name in imported} - sys.stdlib_module_names == {"torch", "transformers"}
        assert "torch.ops" not in path.read_text()
        defined = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        assert len(defined) == len(set(defined)), "two parts define the same name"
        for name in json.loads((folder / "config.json").read_text())["auto_map"].values():
            module, model = name.split(".")
            assert module == path.stem and model in defined


def test_losses_average_over_visible_positions_and_over_labelled_ones() -> None:
    torch.manual_seed(0)
    config = ElectraSamplerConfig(
        vocab_size=9, embedding_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    ids_BL = torch.randint(9, (2, 6))
    visible_BL = torch.arange(6) < torch.tensor([[6], [4]])
    replaced_BL = torch.randint(2, (2, 6))
    judged = ElectraSamplerForPreTraining(config).eval()(ids_BL, visible_BL, labels=replaced_BL)
    log_p_BL = F.logsigmoid(torch.where(replaced_BL.bool(), judged.logits, -judged.logits))
    torch.testing.assert_close(judged.loss, -log_p_BL[visible_BL].mean())
    masked_BL = torch.rand(2, 6) < 0.5
    labels_BL = ids_BL.masked_fill(~masked_BL, -100)
    predicted = ElectraSamplerForMaskedLM(config).eval()(ids_BL, visible_BL, labels=labels_BL)
    log_p_BL = predicted.logits.log_softmax(-1).gather(-1, ids_BL[..., None]).squeeze(-1)
    torch.testing.assert_close(predicted.loss, -log_p_BL[masked_BL].mean())
    assert ElectraSamplerForMaskedLM(config)(ids_BL).loss is None
