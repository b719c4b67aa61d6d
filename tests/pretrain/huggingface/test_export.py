"""Claims about an export: loaded by Hugging Face it gives the model's own outputs.


Another Python with another transformers can join: ELECTRA_SAMPLER_OTHER_PYTHON=VENV/bin/python make test.
"""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import create_model
from safetensors.torch import load_file
from transformers import AutoModel, ElectraForMaskedLM, ElectraForPreTraining

from pretrain.data.batches import Batch
from pretrain.huggingface.export import export, sampling_of
from pretrain.huggingface.stored import SAMPLING, Sampling, read_stored
from pretrain.method.electra import Electra, ReplacementConfig
from tests.conftest import REPOSITORY
from tests.pretrain.conftest import SMALL_MODEL, new_model
from tests.pretrain.huggingface.conftest import assert_bitwise

PYTHONS = [sys.executable, *filter(None, [os.environ.get("ELECTRA_SAMPLER_OTHER_PYTHON")])]
with_every_transformers = pytest.mark.parametrize("python", PYTHONS, ids=["this", "other"][: len(PYTHONS)])


@pytest.fixture
def stock_shaped() -> Electra:
    """A model without relative positions, whose export is a stock Hugging Face ELECTRA."""
    torch.manual_seed(0)
    model = SMALL_MODEL.model_copy(update={"relative_position": False})
    return new_model("hp_loss", model).eval()


def test_a_loaded_pair_gives_the_models_logits(
    stock_shaped: Electra, tokenizer: Path, batch: Batch, inputs: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    export(stock_shaped, tokenizer, "# card\n", tmp_path / "out", 0.15)
    assert len({path.stat().st_mode for path in (tmp_path / "out").rglob("*.*")}) == 1  # whoever reads one may read all
    visible = batch.attention_mask_BL
    discriminator = ElectraForPreTraining.from_pretrained(tmp_path / "out").eval()
    d_BL = stock_shaped.discriminator_predictions(stock_shaped.discriminator(*inputs.values()))
    assert (discriminator(**inputs).logits - d_BL)[visible].abs().max().item() < 1e-5
    generator = ElectraForMaskedLM.from_pretrained(tmp_path / "out" / "generator").eval()
    projected = stock_shaped.generator_predictions(stock_shaped.generator(*inputs.values()))
    scores_BLV = stock_shaped.generator.embeddings.word_embeddings(projected, stock_shaped.generator_lm_head)
    assert (generator(**inputs).logits - scores_BLV)[visible].abs().max().item() < 1e-5


@pytest.mark.parametrize("sharing", ["nes", "gdes"])
def test_of_separate_embeddings_each_folder_carries_what_its_encoder_adds_up(
    sharing: str, tokenizer: Path, batch: Batch, inputs: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """With gdes the discriminator's tables are the generator's plus Delta."""
    sizes = SMALL_MODEL.model_copy(update={"relative_position": False, "embedding_sharing": sharing})
    model = new_model("hp_loss", sizes).eval()
    generators, discriminators = model.generator.embeddings, model.discriminator.embeddings
    expected = {}
    for name, weight in generators.named_parameters():
        own = torch.nn.init.normal_(discriminators.get_parameter(name))
        disentangled = sharing == "gdes" and name in ("word_embeddings.weight", "position_embeddings.weight")
        expected[name] = weight + own if disentangled else own
    export(model, tokenizer, "# card\n", tmp_path / "out", 0.15)
    ours = read_stored(tmp_path / "out").encoder()
    assert_bitwise(dict(ours.embeddings.named_parameters()), expected)
    assert torch.equal(ours(*inputs.values()), model.discriminator(*inputs.values()))
    theirs, loading = ElectraForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    visible = batch.attention_mask_BL
    logits = model.discriminator_predictions(model.discriminator(*inputs.values()))
    assert (theirs.eval()(**inputs).logits - logits)[visible].abs().max().item() < 1e-5
    loaded = read_stored(tmp_path / "out" / "generator").encoder().state_dict()
    assert_bitwise(loaded, model.generator.state_dict())


def test_a_model_with_relative_positions_is_not_mistaken_for_a_stock_one(
    make_electra: Callable[..., Electra], tokenizer: Path, tmp_path: Path
) -> None:
    """Stock classes would silently drop the table and compute something else."""
    export(make_electra(), tokenizer, "# card\n", tmp_path / "out", 0.15)
    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=False)


def test_the_record_of_a_sampler_of_ones_own_holds_its_inherited_settings_only() -> None:
    """Whatever the names of its own: a mixture of 1 is none of HP_Dist's."""
    own = create_model("Config", __base__=ReplacementConfig, mixture=(float, 1.0), mask_share=(float, 7.0))
    assert sampling_of(own(name="own", temperature=2.0), 0.15) == {
        SAMPLING: {**dict(Sampling(objective="own", mask_share=0.15)), "temperature": 2.0}
    }


def without_project(tmp_path: Path) -> dict[str, str]:
    others = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return others | {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@with_every_transformers
def test_every_auto_class_loads_an_export_where_this_project_is_not_installed(
    python: str,
    make_electra: Callable[..., Electra],
    batch: Batch,
    inputs: dict[str, torch.Tensor],
    tokenizer: Path,
    tmp_path: Path,
) -> None:
    model = make_electra().eval()
    export(model, tokenizer, "# card\n", tmp_path / "out", 0.15)
    torch.save(inputs, tmp_path / "inputs.pt")
    (tmp_path / "elsewhere").mkdir()
    script = REPOSITORY / "tests/pretrain/huggingface/elsewhere.py"
    process = subprocess.run(
        [python, script, tmp_path / "out", tmp_path / "inputs.pt", tmp_path / "results"],
        cwd=tmp_path / "elsewhere",
        env=without_project(tmp_path),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert process.returncode == 0, process.stderr
    assert len(re.findall("^loads: ", process.stdout, re.MULTILINE)) == 7

    results = load_file(tmp_path / "results")
    assert results["ids"].tolist() == [2, 5, 6, 3]
    visible = batch.attention_mask_BL
    encoded = model.discriminator(*inputs.values())
    projected = model.generator_predictions(model.generator(*inputs.values()))
    expected = {
        "AutoModel": encoded,
        "AutoModelForPreTraining": model.discriminator_predictions(encoded),
        "AutoModelForMaskedLM": model.generator.embeddings.word_embeddings(projected, model.generator_lm_head),
    }
    for name, values in expected.items():
        assert (results[name] - values)[visible].abs().max().item() < 1e-5, name
    for name, weight in model.discriminator.state_dict().items():
        assert torch.equal(results[f"AutoModel/{name}"], weight)
        assert torch.equal(results[f"AutoModelForMultipleChoice/electra.{name}"], weight)
    for name, weight in model.generator.state_dict().items():
        assert torch.equal(results[f"AutoModelForMaskedLM/electra.{name}"], weight)
    again = read_stored(tmp_path / "results-again").encoder().state_dict()  # saved by Hugging Face, read by us
    assert_bitwise(again, model.discriminator.state_dict())


@with_every_transformers
def test_the_tokenizer_loads_on_a_terminal_without_a_question_and_without_the_code(
    python: str, make_electra: Callable[..., Electra], tokenizer: Path, tmp_path: Path
) -> None:
    """On a real terminal, where transformers asks whether to run the code of a folder when it is not told."""
    export(make_electra(), tokenizer, "# card\n", tmp_path / "out", 0.15)
    program = (
        "import sys; from transformers import AutoTokenizer;"
        "print(AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)('yes no')['input_ids']);"
        "print([name for name in sys.modules if 'modeling_electra_sampler' in name])"
    )
    terminal, end = pty.openpty()
    process = subprocess.run(
        [python, "-c", program, tmp_path / "out"],
        env=without_project(tmp_path),
        stdin=end,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    os.close(end)
    os.close(terminal)
    assert process.returncode == 0, process.stdout
    assert "[2, 5, 6, 3]\n[]\n" in process.stdout and "[y/N]" not in process.stdout
