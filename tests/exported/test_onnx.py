"""Claims about exports to ONNX, by both exporters of PyTorch, run in onnxruntime.

The models are a discriminator with relative position, by the code that an export carries, a stock ELECTRA, and a stock
ModernBERT, as which a modern encoder leaves.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ElectraConfig, ElectraForPreTraining, ModernBertConfig, ModernBertForTokenClassification

from tests.exported.models import TINY, inputs, new_model

onnxruntime = pytest.importorskip("onnxruntime")


def model_of(kind: str) -> Any:
    if kind == "relative":
        return new_model("ForPreTraining")
    torch.manual_seed(0)
    if kind == "stock":
        return ElectraForPreTraining(ElectraConfig(**TINY)).eval()
    config = ModernBertConfig(**TINY | {"num_hidden_layers": 4}, num_labels=1, local_attention=8, pad_token_id=0)
    return ModernBertForTokenClassification(config).eval()


@pytest.mark.parametrize(
    ("kind", "dynamo"),
    [
        *(("relative", False), ("relative", True), ("stock", False), ("modern", False)),
        *(pytest.param(kind, True, marks=pytest.mark.long) for kind in ("stock", "modern")),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_runtimes_logits_are_the_models_at_every_batch_size_and_length(
    kind: str, dynamo: bool, tmp_path: Path
) -> None:
    model, example = model_of(kind), inputs("ForPreTraining")
    if kind == "modern":
        del example["token_type_ids"]
    free: Any = {name: {0: "batch", 1: "length"} for name in example}
    torch.onnx.export(
        model,
        kwargs=example,
        f=str(tmp_path / "model.onnx"),
        dynamo=dynamo,
        verbose=False,
        input_names=list(example),
        output_names=["logits"],
        **{"dynamic_shapes" if dynamo else "dynamic_axes": free},
    )
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for batch, length in ((3, 11), (1, 2), (5, 29), (2, 40)):
        lengths = torch.randint(1, length + 1, (batch, 1))
        given = {
            "input_ids": torch.randint(30, (batch, length)),
            "attention_mask": (torch.arange(length) < lengths).long(),
            "token_type_ids": torch.randint(2, (batch, length)),
        }
        given = {name: given[name] for name in example}
        (logits,) = session.run(None, {name: value.numpy() for name, value in given.items()})
        visible = given["attention_mask"].bool()
        expected = model(**given).logits.detach().view(batch, length)
        assert (torch.from_numpy(logits).view(batch, length) - expected)[visible].abs().max() < 1e-5
