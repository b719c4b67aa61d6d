"""Claims about exports of the modern encoder: stock classes of transformers load them and give the model's outputs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForTokenClassification,
    ElectraConfig,
    ElectraForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForTokenClassification,
)

from data_prep.manifest import load_manifest
from electra_sampler.foundation.config import ConfigError
from pretrain.huggingface import forms
from pretrain.huggingface.export import export
from pretrain.huggingface.folders import read_weights
from pretrain.huggingface.stored import read_stored
from pretrain.method.electra import Electra
from tests.conftest import needs
from tests.pretrain.conftest import MODERN, VOCABULARY, new_model
from tests.pretrain.huggingface.conftest import assert_bitwise, change_config, start


@pytest.fixture
def modern() -> Electra:
    torch.manual_seed(0)
    model: Electra = new_model("hp_loss", MODERN).eval()
    return model


@pytest.fixture
def exported(modern: Electra, tokenizer: Path, tmp_path: Path) -> Path:
    export(modern, tokenizer, "# card\n", tmp_path / "out", 0.15)
    return tmp_path / "out"


def test_an_exported_encoder_loads_here_bit_for_bit(modern: Electra, exported: Path) -> None:
    loaded, ours = read_stored(exported).encoder(hidden_dropout_prob=0.0), modern.discriminator
    assert loaded.config == ours.config
    assert_bitwise(loaded.state_dict(), ours.state_dict())


@pytest.fixture
def stock(tmp_path: Path) -> tuple[str, str]:
    """A masked language model and a token classifier, saved by Hugging Face."""
    torch.manual_seed(0)
    shape = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = ModernBertConfig(**shape, intermediate_size=96, num_labels=1, pad_token_id=0, initializer_range=0.2)
    generator, discriminator = ModernBertForMaskedLM(config), ModernBertForTokenClassification(config)
    discriminator.model.embeddings.load_state_dict(generator.model.embeddings.state_dict())
    generator.save_pretrained(tmp_path / "generator")
    discriminator.save_pretrained(tmp_path / "discriminator")
    return str(tmp_path / "generator"), str(tmp_path / "discriminator")


def test_a_stock_pair_starts_a_run_bit_for_bit(stock: tuple[str, str], shards_folder: Path, tmp_path: Path) -> None:
    export(start(shards_folder, stock, preset="modern_tiny"), shards_folder / "tokenizer", "", tmp_path / "out", 0.15)
    for folder, out in zip(stock, (tmp_path / "out" / "generator", tmp_path / "out"), strict=True):
        before, after = read_weights(Path(folder)), read_weights(out)
        before.pop("decoder.weight", None)  # the word embeddings a second time
        assert_bitwise(after, before)


def test_a_masked_language_model_alone_starts_the_discriminator(
    stock: tuple[str, str], shards_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Replaced-token detection continued from a ModernBERT, with a narrow generator of its own."""
    model = start(shards_folder, stock[:1], preset="modern_tiny")
    theirs = read_stored(stock[0]).encoder().state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in model.discriminator.state_dict().items())
    assert model.generator.config.hidden_size < model.discriminator.config.hidden_size
    assert "these parts start fresh" in capsys.readouterr().out


def test_rows_beyond_the_tokenizers_tokens_are_left_out(
    stock: tuple[str, str], shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ModernBERT has 88 rows more than tokens."""
    tokens = load_manifest(shards_folder).vocab_size
    longer = ModernBertForMaskedLM.from_pretrained(stock[0])
    longer.resize_token_embeddings(tokens + 20, mean_resizing=False)
    longer.save_pretrained(tmp_path / "longer")
    shutil.copytree(shards_folder / "tokenizer", tmp_path / "longer", dirs_exist_ok=True)
    model = start(shards_folder, (str(tmp_path / "longer"),), preset="modern_tiny")
    words = model.discriminator.embeddings.word_embeddings.weight
    assert torch.equal(words, longer.model.embeddings.tok_embeddings.weight[:tokens])
    assert "are new to the model" not in capsys.readouterr().out


@pytest.mark.parametrize("sharing", ["es", "nes", "gdes"])
def test_an_exported_narrow_generator_starts_a_run_with_its_scores(
    sharing: str, shards_folder: Path, tmp_path: Path
) -> None:
    """Its projections, which the export multiplied into its tables, are found again."""
    sizes = (f"model.embedding_sharing={sharing}", "seed=3")
    first = start(shards_folder, (), preset="modern_tiny", objective="hp_dist", set=sizes)
    for parameter in first.parameters():
        torch.nn.init.normal_(parameter, parameter.mean().item(), 0.1)
    export(first, shards_folder / "tokenizer", "", tmp_path / "out", 0.15)
    again = start(shards_folder, (str(tmp_path / "out"),), preset="modern_tiny", objective="hp_dist", set=sizes)
    ids_BL = torch.randint(5, 300, (2, 20))
    found: list[list[torch.Tensor]] = []
    model: Any
    for model in (first.eval(), again.eval()):
        words = model.generator.embeddings.word_embeddings
        hidden_BLH = model.generator(ids_BL, torch.ones_like(ids_BL), torch.zeros_like(ids_BL))
        d_BL = model.discriminator_predictions(model.discriminator(ids_BL, torch.ones_like(ids_BL), ids_BL))
        scores_BLV = words(model.generator_predictions(hidden_BLH), model.generator_lm_head)
        found.append([d_BL, scores_BLV, words(model.sampler_transform(hidden_BLH), model.sampler_scores)])
    for before, after in zip(*found, strict=True):
        assert torch.allclose(before, after, rtol=1e-4, atol=1e-4 * before.abs().max().item())
    one, other = (model.discriminator.embeddings.plain().word_embeddings.weight for model in (first, again))
    assert torch.allclose(one, other, rtol=0, atol=1e-6 if sharing == "gdes" else 0)


REFUSED = (
    r"^model: (classifier_activation|rope_scaling|rope_parameters\.full_attention(\.(rope_)?type)?): got .*, expected.*"
    r"|^model: hidden_size: (got 33, expected a multiple of heads \(2\)|got 30 with 2 heads, expected an even .*)"
)


@pytest.mark.parametrize(
    "change",
    [
        {"classifier_activation": "silu"},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}}},
        {"rope_parameters": {"full_attention": {"type": "linear", "factor": 8}}},
        {"rope_parameters": {"full_attention": 5}},
        {"rope_scaling": {"rope_type": "linear", "factor": 8}},
        {"hidden_size": 33},
        {"hidden_size": 30},
    ],
    ids=str,
)
def test_settings_that_compute_something_else_or_nothing_are_refused_by_name_in_one_line(
    change: dict[str, Any], exported: Path
) -> None:
    values = json.loads((exported / "config.json").read_text())
    forms.MODERN.read(values, "model")
    with pytest.raises(ConfigError, match=rf"({REFUSED}); correct it, or name another model$") as error:
        forms.MODERN.read(values | change, "model")
    assert len(error.value.problems) == 1


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"sliding_window": 2},
        {"local_attention": 6},
        {"norm_eps": 0.01},
        {"rope_parameters": {}, "global_rope_theta": 500.0},
        {"rope_parameters": {"sliding_attention": {"rope_theta": 500.0}}},
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
    ],
    ids=str,
)
def test_settings_that_change_the_output_change_it_as_in_transformers(
    change: dict[str, Any], stock: tuple[str, str], shards_folder: Path
) -> None:
    ids_BL, plain = torch.randint(5, 300, (2, 40)), read_stored(stock[1]).encoder().eval()
    change_config(stock[1], change)
    model = start(shards_folder, stock[1:], preset="modern_tiny").eval()
    with torch.no_grad():
        theirs_BLH = AutoModel.from_pretrained(stock[1]).eval()(ids_BL).last_hidden_state
        ours_BLH, plain_BLH = (
            encoder(ids_BL, torch.ones_like(ids_BL), torch.zeros_like(ids_BL))
            for encoder in (model.discriminator, plain)
        )
    assert (ours_BLH - theirs_BLH).abs().max().item() < 1e-5
    assert not change or (plain_BLH - theirs_BLH).abs().max().item() > 1e-3


def test_of_a_classifier_with_several_labels_the_encoder_alone_is_used(
    stock: tuple[str, str], shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ModernBertConfig.from_pretrained(stock[1], num_labels=5)
    ModernBertForTokenClassification.from_pretrained(
        stock[1], config=config, ignore_mismatched_sizes=True
    ).save_pretrained(tmp_path / "tagger")
    model = start(shards_folder, (str(tmp_path / "tagger"),), preset="modern_tiny")
    theirs = read_stored(stock[1]).encoder().state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in model.discriminator.state_dict().items())
    assert "discriminator_predictions" in capsys.readouterr().out


def test_a_modernbert_needs_a_modern_preset_and_an_electra_another(
    stock: tuple[str, str], shards_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"of another kind than model\.backbone electra; choose a preset"):
        start(shards_folder, stock)
    ElectraForMaskedLM(ElectraConfig(vocab_size=300)).save_pretrained(tmp_path / "electra")
    with pytest.raises(ConfigError, match=r"/electra is of another kind than model\.backbone modern; choose a preset"):
        start(shards_folder, (str(tmp_path / "electra"), stock[1]), preset="modern_tiny")


def test_sentence_transformers_encodes_with_an_export(modern: Electra, exported: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    (vector,) = sentence_transformers.SentenceTransformer(str(exported), device="cpu").encode(["yes no yes"])
    ids_BL = torch.tensor([[2, 5, 6, 5, 3]])
    with torch.no_grad():
        mean = modern.discriminator(ids_BL, torch.ones_like(ids_BL), torch.zeros_like(ids_BL))[0].mean(0)
    assert (torch.from_numpy(vector) - mean).abs().max().item() < 1e-5


IN_JAVASCRIPT = """
import { AutoModelForTokenClassification, AutoTokenizer, env } from "@huggingface/transformers"
env.allowRemoteModels = false
env.localModelPath = "./"
const inputs = await (await AutoTokenizer.from_pretrained("out"))("yes no yes")
const model = await AutoModelForTokenClassification.from_pretrained("out", { dtype: "fp32", device: "cpu" })
const { logits } = await model(inputs)
console.log(JSON.stringify([Array.from(inputs.input_ids.data, Number), Array.from(logits.data)]))
"""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_logits_are_the_models_in_javascript(modern: Electra, exported: Path) -> None:
    pytest.importorskip("onnxscript")
    needs("node", "npm")
    asked = ("--ignore-scripts", "--no-audit", "--no-fund", "@huggingface/transformers@4.3.2")
    if subprocess.run(["npm", "install", *asked], cwd=exported.parent, capture_output=True).returncode:
        pytest.skip("needs npm's registry")
    model = AutoModelForTokenClassification.from_pretrained(exported).eval()
    ids_BL = torch.tensor([[2, 5, 6, 5, 3], [2, 6, 6, 6, 3]])
    inputs = {"input_ids": ids_BL, "attention_mask": torch.ones_like(ids_BL)}
    (exported / "onnx").mkdir()
    torch.onnx.export(
        model,
        kwargs=inputs,
        f=str(exported / "onnx" / "model.onnx"),
        dynamo=True,
        verbose=False,
        dynamic_shapes={name: {0: "batch", 1: "length"} for name in inputs},
        input_names=list(inputs),
        output_names=["logits"],
        external_data=False,
    )
    command = ["node", "--input-type=module", "--eval", IN_JAVASCRIPT]
    process = subprocess.run(command, cwd=exported.parent, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    ids, logits = json.loads(process.stdout)
    with torch.no_grad():
        expected = model(**inputs).logits[0].flatten()
    assert ids == ids_BL[0].tolist() and (torch.tensor(logits) - expected).abs().max().item() < 1e-5


ELSEWHERE = """
import sys
import torch
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM, AutoModelForTokenClassification, AutoTokenizer, __version__

assert "pretrain" not in sys.modules and __version__.startswith(sys.argv[4])
out, given = sys.argv[1], torch.load(sys.argv[2], weights_only=True)
discriminator = AutoModelForTokenClassification.from_pretrained(out).eval()
generator = AutoModelForMaskedLM.from_pretrained(out + "/generator").eval()
assert AutoTokenizer.from_pretrained(out)("yes no")["input_ids"] == [2, 5, 6, 3]
found = {}
with torch.no_grad():
    for length, inputs in given.items():
        found[f"d/{length}"] = discriminator(**inputs).logits[..., 0]
        predicted = generator(**inputs, labels=inputs["input_ids"].where(inputs["attention_mask"] > 0, -100))
        found |= {f"g/{length}": predicted.logits, f"loss/{length}": predicted.loss}
save_file({name: values.contiguous() for name, values in found.items()}, sys.argv[3])
"""


@pytest.mark.parametrize("version", ["5", pytest.param("4.57", marks=pytest.mark.long)])
@torch.no_grad()
def test_logits_and_loss_are_the_models_in_transformers_without_this_project(
    version: str, tokenizer: Path, tmp_path: Path
) -> None:
    """Although the generator is narrower than the word embeddings: both projections are in its tables."""
    torch.manual_seed(0)
    model = new_model("hp_loss", MODERN.model_copy(update={"max_positions": 300})).eval()
    export(model, tokenizer, "# card\n", tmp_path / "out", 0.15)
    lengths = torch.tensor([[1.0], [0.6], [0.1]])
    given = {
        str(length): {
            "input_ids": torch.randint(VOCABULARY, (3, length)),
            "attention_mask": (torch.arange(length) < lengths * length).long(),
        }
        for length in (64, 130, 300)
    }
    torch.save(given, tmp_path / "inputs.pt")
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    others = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if not transformers.__version__.startswith(version):
        asked = ("--quiet", "--target", tmp_path / "site", f"transformers=={version}.*")
        subprocess.run([sys.executable, "-m", "pip", "install", *asked], check=True)
        others["PYTHONPATH"] = str(tmp_path / "site")
    arguments = (tmp_path / "out", tmp_path / "inputs.pt", tmp_path / "results", version)
    subprocess.run([sys.executable, tmp_path / "elsewhere.py", *arguments], check=True, env=others, cwd=tmp_path)
    results = load_file(tmp_path / "results")
    for length, inputs in given.items():
        ids_BL, visible_BL = inputs["input_ids"], inputs["attention_mask"].bool()
        segments_BL = torch.zeros_like(ids_BL)
        d_BL = model.discriminator_predictions(model.discriminator(ids_BL, visible_BL, segments_BL))
        hidden_BLE = model.generator_predictions(model.generator(ids_BL, visible_BL, segments_BL))
        scores_BLV = model.generator.embeddings.word_embeddings(hidden_BLE, model.generator_lm_head)
        loss = torch.nn.functional.cross_entropy(scores_BLV[visible_BL], ids_BL[visible_BL])
        assert (results[f"d/{length}"] - d_BL)[visible_BL].abs().max().item() < 1e-5
        assert (results[f"g/{length}"] - scores_BLV)[visible_BL].abs().max().item() < 1e-5
        assert abs(results[f"loss/{length}"] - loss).item() < 1e-5
