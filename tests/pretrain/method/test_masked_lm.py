"""Claims about the masked language model: the baseline of objective `mlm`, and masks that keep their token."""

from collections.abc import Callable

import pytest
import torch
from transformers import ElectraConfig, ElectraForMaskedLM

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.method.masked_lm import MaskedLM, masked_states
from pretrain.method.objectives import ObjectiveConfig
from pretrain.method.replacement import keeps_token
from tests.pretrain.conftest import MASK, SMALL_MODEL, VOCABULARY


def make_mlm(**objective: object) -> MaskedLM:
    torch.manual_seed(0)
    config = ObjectiveConfig.from_values({"name": "mlm", **objective})
    return MaskedLM(SMALL_MODEL.model_copy(update={"relative_position": False}), config, VOCABULARY, MASK)


def masked_ids(batch: Batch) -> torch.Tensor:
    ids = batch.input_ids_BL.clone()
    for row, (positions, valid) in enumerate(zip(batch.masked_positions_BK, batch.masked_valid_BK, strict=True)):
        ids[row, positions[valid]] = MASK
    return ids


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
    ids = masked_ids(batch)
    labels = torch.where(ids == MASK, batch.input_ids_BL, -100)
    expected = theirs(ids, batch.attention_mask_BL.long(), batch.token_type_ids_BL, labels=labels).loss
    output = model(batch)
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    logits = theirs(ids, batch.attention_mask_BL.long(), batch.token_type_ids_BL).logits
    valid = batch.masked_valid_BK
    top = logits.argmax(-1).gather(1, batch.masked_positions_BK)
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


def test_kept_positions_show_their_token_and_are_still_predicted(batch: Batch) -> None:
    model = make_mlm().eval()
    kept = keeps_token(batch.uniforms_BK, 0.5) & batch.masked_valid_BK
    assert 0 < kept.sum() < batch.masked_valid_BK.sum()
    ids = masked_ids(batch)
    for row, slot in kept.nonzero().tolist():
        position = batch.masked_positions_BK[row, slot]
        ids[row, position] = batch.input_ids_BL[row, position]
    seen = model.electra(ids, batch.attention_mask_BL, batch.token_type_ids_BL)
    states = masked_states(model.electra, batch, MASK, keep_fraction=0.5)
    for row, slot in batch.masked_valid_BK.nonzero().tolist():
        assert torch.equal(states[row, slot], seen[row, batch.masked_positions_BK[row, slot]])
    assert make_mlm(mask_keep_fraction=0.5)(batch).generator_loss_BK.shape == batch.masked_positions_BK.shape
