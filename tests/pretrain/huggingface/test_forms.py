"""Claims about the table of forms: nothing else tells kinds of model apart, and another kind is one more entry."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from finetune.config import GlueOptions
from finetune.scoring import open_scorer
from pretrain.data.batches import Batch
from pretrain.huggingface.export import export
from pretrain.huggingface.forms import DISCRIMINATOR, FORMS, GENERATOR, TASKS, Form
from pretrain.huggingface.stored import read_stored
from pretrain.model.config import KINDS, ElectraModelConfig, ModelConfig
from pretrain.model.encoder import ElectraEncoder
from pretrain.model.sizes import EncoderConfig
from pretrain.presets import PRESETS
from tests.finetune.conftest import cola_rows, run_queue
from tests.pretrain.huggingface.conftest import assert_bitwise, start


@dataclass(frozen=True, kw_only=True)
class ToyConfig(EncoderConfig):
    """ELECTRA's, without relative positions, and with a field of its own."""

    relative_position: bool = False
    scale: float = 1.0


class ToyEncoder(ElectraEncoder):
    """Hidden states are ELECTRA's, times `scale`."""

    config: ToyConfig

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.config.scale * super().forward(*given)


class ToyModelConfig(ModelConfig):
    parts = ElectraModelConfig.parts._replace(config=ToyConfig, encoder=ToyEncoder)
    backbone: Literal["toy"] = "toy"
    scale: float = 1.0


OWN = [field.name for field in fields(ToyConfig)]
TOY = Form(
    model_type="toy",
    parts=ToyModelConfig.parts,
    names={f"toy_{name}": name for name in OWN},
    others={},
    derived=lambda found: {},
    ours=lambda weights, architecture: {name.replace("toy.", "electra."): weights[name] for name in weights},
    classes={name: name.replace("Electra", "Toy") for name in (DISCRIMINATOR, GENERATOR, *TASKS)},
    describe=lambda config, *others: {f"toy_{name}": getattr(config, name) for name in OWN},
    theirs=lambda weights, config: {name.replace("electra.", "toy."): weights[name] for name in weights},
    predicts_alone=True,
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A third kind of encoder, which the smallest preset has."""
    sizes = PRESETS["tiny"].model.model_dump(include=set(ModelConfig.model_fields) - {"backbone"})
    monkeypatch.setitem(KINDS, "toy", ToyModelConfig)
    monkeypatch.setitem(PRESETS, "tiny", PRESETS["tiny"].model_copy(update={"model": ToyModelConfig(**sizes)}))
    FORMS.append(TOY)
    yield
    FORMS.remove(TOY)


def test_a_third_kind_of_encoder_goes_all_the_way(toy: None, shards_folder: Path, batch: Batch, tmp_path: Path) -> None:
    """It trains; its export reads back bit for bit, starts a run, is scored, fine-tuned and kept."""
    model = start(shards_folder, (), preset="tiny", objective="hp_loss", set=("model.scale=0.5",))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]

    export(model, shards_folder / "tokenizer", "", tmp_path / "out", 0.15)
    assert "toy.encoder.layer.0.output.dense.weight" in load_file(tmp_path / "out" / "model.safetensors")
    for folder, own in ((tmp_path / "out", model.discriminator), (tmp_path / "out" / "generator", model.generator)):
        encoder: Any = read_stored(folder).encoder()
        assert (encoder.config.scale, type(encoder)) == (0.5, ToyEncoder)
        assert_bitwise(encoder.state_dict(), own.state_dict())

    again = start(shards_folder, (str(tmp_path / "out"),), preset="tiny", objective="hp_loss")
    assert getattr(again.discriminator.config, "scale", None) == 0.5
    assert_bitwise(again.state_dict(), model.state_dict())

    scorer = open_scorer(str(tmp_path / "out"), ("discriminator", "likelihood"))
    (scores,) = scorer.scores(["the value of a name"]).values()
    ids_BL = torch.tensor([scorer.tokenizer("the value of a name")["input_ids"]])
    hidden_BLH = model.eval().discriminator(ids_BL, torch.ones_like(ids_BL), torch.zeros_like(ids_BL))
    d_T = model.discriminator_predictions(hidden_BLH)[0, 1:-1]
    np.testing.assert_allclose(scores["discriminator"], torch.nn.functional.logsigmoid(-d_T).detach(), atol=1e-6)
    assert np.isfinite(scores["likelihood"]).all()

    (tmp_path / "CoLA").mkdir()
    for number, name in enumerate(("train", "dev")):
        (tmp_path / "CoLA" / f"{name}.tsv").write_text(cola_rows(20, seed=number))
    given = {"model": str(tmp_path / "out"), "data_dir": str(tmp_path), "task": ("CoLA",), "seeds": (1,), "epochs": 1}
    (record,) = run_queue(GlueOptions, tmp_path / "glue", **given, batch_size=8)
    kept = read_stored(tmp_path / "glue" / "finetuned" / record.run.folder_name())
    assert kept.settings["architectures"] == ["ToyForSequenceClassification"]
    assert getattr(kept.config, "scale", None) == 0.5
    assert kept.encoder().state_dict().keys() == model.discriminator.state_dict().keys()
