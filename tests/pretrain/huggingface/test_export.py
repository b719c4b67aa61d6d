"""Claims about an export: loaded by Hugging Face it gives the model's own outputs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer, ElectraForMaskedLM, ElectraForPreTraining

from pretrain.data.batches import Batch
from pretrain.huggingface.export import export
from pretrain.huggingface.folders import load_encoder
from pretrain.method.electra import Electra
from tests.pretrain.conftest import SMALL_MODEL, new_model


@pytest.fixture
def stock_shaped() -> Electra:
    """A model without relative positions, whose export is a stock Hugging Face ELECTRA."""
    torch.manual_seed(0)
    model = SMALL_MODEL.model_copy(update={"relative_position": False})
    return new_model("hp_loss", model).eval()


def test_the_loaded_discriminator_gives_the_models_logits(
    stock_shaped: Electra, tokenizer: Path, batch: Batch, inputs: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    export(stock_shaped, 0, tokenizer, "# card\n", tmp_path / "out")
    theirs, loading = ElectraForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    visible = batch.attention_mask_BL
    originals_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
    ours = stock_shaped.discriminate(batch, originals_BK)[0][visible]
    assert (theirs.eval()(**inputs).logits[visible] - ours).abs().max().item() < 1e-5


def test_the_loaded_generator_gives_the_models_logits(
    stock_shaped: Electra, tokenizer: Path, batch: Batch, inputs: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    export(stock_shaped, 0, tokenizer, "# card\n", tmp_path / "out")
    theirs, loading = ElectraForMaskedLM.from_pretrained(tmp_path / "out" / "generator", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    hidden = stock_shaped.generator(*inputs.values())
    projected = stock_shaped.generator_predictions(hidden)
    ours = stock_shaped.generator_lm_head(projected, stock_shaped.generator.embeddings.word_embeddings)
    visible = batch.attention_mask_BL
    assert (theirs.eval()(**inputs).logits - ours)[visible].abs().max().item() < 1e-5


def test_weights_are_bitwise_equal_and_the_tokenizer_is_included(
    stock_shaped: Electra, tokenizer: Path, tmp_path: Path
) -> None:
    export(stock_shaped, 0, tokenizer, "# card\n", tmp_path / "out")
    loaded = load_encoder(tmp_path / "out").state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in stock_shaped.discriminator.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("yes no")["input_ids"] == [2, 5, 6, 3]


def test_a_model_with_relative_positions_is_not_mistaken_for_a_stock_one(
    make_electra: Callable[..., Electra], tokenizer: Path, tmp_path: Path
) -> None:
    """Stock classes would silently drop the table and compute something else."""
    model = make_electra()
    export(model, 0, tokenizer, "# card\n", tmp_path / "out")
    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=False)
    table = load_encoder(tmp_path / "out").encoder.relative_attention_bias.weight
    assert torch.equal(table, model.discriminator.encoder.relative_attention_bias.weight)
