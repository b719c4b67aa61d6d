"""Claims about the masked language model, the baseline objective `mlm`."""

from collections.abc import Callable

import pytest
import torch
from transformers import ElectraConfig, ElectraForMaskedLM

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.method.mlm import MaskedLM
from tests.pretrain.conftest import MASK, SMALL_MODEL, VOCABULARY


def make_mlm(**switches: object) -> MaskedLM:
    torch.manual_seed(0)
    stock = SMALL_MODEL.model_copy(update={"relative_position": False})
    return MaskedLM(stock, MaskedLM.Config.from_values(switches), VOCABULARY, MASK)


def test_the_loss_is_hugging_faces_cross_entropy_of_the_masked_positions(batch: Batch) -> None:
    model = make_mlm(gamma=0.0).eval()
    encoder = model.electra.config
    theirs = ElectraForMaskedLM(
        ElectraConfig(
            **{name: getattr(encoder, name) for name in ("vocab_size", "embedding_size", "hidden_size")},
            num_hidden_layers=encoder.num_hidden_layers,
            num_attention_heads=encoder.num_attention_heads,
            intermediate_size=encoder.intermediate_size,
            max_position_embeddings=encoder.max_position_embeddings,
        )
    ).eval()
    assert not theirs.load_state_dict(model.state_dict(), strict=False).unexpected_keys
    ids = batch.input_ids_BL.masked_fill(batch.masked_BL.bool(), MASK)
    labels = torch.where(ids == MASK, batch.input_ids_BL, -100)
    expected = theirs(ids, batch.attention_mask_BL.long(), batch.token_type_ids_BL, labels=labels)
    output, valid = model(batch), batch.masked_valid_BK
    assert output.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    top = expected.logits.argmax(-1).gather(1, batch.masked_positions_BK)
    assert torch.equal(output.top_BK[valid], top[valid])


def test_the_encoder_has_the_discriminators_size(batch: Batch, make_electra: Callable[..., Electra]) -> None:
    ours, discriminator = make_mlm().electra, make_electra(name="electra").discriminator
    names = {name for name, _ in discriminator.named_parameters() if "relative" not in name}
    assert names == {name for name, _ in ours.named_parameters()}
    assert ours.config.hidden_size == discriminator.config.hidden_size


def test_focal_loss_applies_to_the_baseline_too(batch: Batch) -> None:
    log_p = make_mlm(gamma=0.0)(batch).log_p_original_BK
    focal = make_mlm(gamma=2.0)(batch).generator_loss_BK
    assert torch.allclose(focal, -((1 - log_p.exp()) ** 2) * log_p)
