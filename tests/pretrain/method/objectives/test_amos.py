"""Claims about AMOS: its mixture, its draws, and the reversed gradient, which reaches only the mixing weights."""

import pytest
import torch
from torch import Tensor

from foundation.ordering import uniforms
from pretrain.data.batches import Batch
from pretrain.method.losses import discriminator_loss
from pretrain.method.objectives.amos import Amos, gumbel
from pretrain.model.encoder import LayerStack
from tests.pretrain.conftest import SMALL_MODEL, new_model

W = "sampler_mixture.weight"


def double(batch: Batch) -> Batch:
    return batch._replace(uniforms_BK=batch.uniforms_BK.double(), keep_uniforms_BK=batch.keep_uniforms_BK.double())


def model_of(**switches: object) -> Amos:
    """A model in float64 whose mixing weights differ between positions."""
    torch.manual_seed(1)
    model: Amos = new_model("amos", **switches).double()
    torch.nn.init.normal_(model.sampler_mixture.weight, std=2.0)
    return model


def gradients(model: Amos, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def scores(model: Amos, batch: Batch) -> list[Tensor]:
    """Every depth's scores at the masked positions, by a plain loop over the generator's layers."""
    change_BL = torch.zeros_like(batch.attention_mask_BL)
    for row, positions in enumerate(batch.masked_positions_BK):
        change_BL[row, positions[batch.masked_valid_BK[row]]] = True
    ids_BL = batch.input_ids_BL.masked_fill(change_BL, model.special_mask_id)
    encoder, found = model.generator, []
    hidden_BLH = encoder.embeddings_project(encoder.embeddings(ids_BL, batch.token_type_ids_BL))
    bias = encoder.encoder.attention_bias(batch.attention_mask_BL, hidden_BLH.dtype)
    for layer in encoder.encoder.layer:
        hidden_BLH = layer(hidden_BLH.detach() if found else hidden_BLH, bias)
        rows_BK = torch.arange(len(hidden_BLH))[:, None]
        found.append(hidden_BLH[rows_BK, batch.masked_positions_BK])
    return found


def reference(model: Amos, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The losses with the straight-through estimator as AMOS writes it: y E_D through a product over the vocabulary.

    Returns L_G over all depths, L_D, and x'.
    """
    hidden = scores(model, batch)
    words = model.generator.embeddings.word_embeddings.weight
    z_NBKV = torch.stack(
        [model.generator_predictions(h_BKH) @ words.T + model.generator_lm_head.bias for h_BKH in hidden]
    )
    original_BK = batch.input_ids_BL.gather(1, batch.masked_positions_BK)
    index_NBK1 = original_BK[None, ..., None].expand(len(hidden), -1, -1, 1)
    loss_BK = -z_NBKV.log_softmax(-1).gather(-1, index_NBK1)[..., 0].sum(0)
    pi_NBK = torch.stack([model.sampler_mixture(h_BKH.detach())[..., 0] for h_BKH in hidden]).softmax(0)
    s_BKV = (pi_NBK[..., None] * z_NBKV.detach()).sum(0)
    noisy_BKV = s_BKV + gumbel(batch.uniforms_BK, s_BKV.shape[-1])
    soft_BKV = (noisy_BKV / model.objective.tau).softmax(-1)
    tokens_BK = noisy_BKV.argmax(-1)
    hard_BKV = torch.nn.functional.one_hot(tokens_BK, s_BKV.shape[-1]).double()
    y_BKV = hard_BKV + (soft_BKV.detach() - soft_BKV)  # GradMultiply(., -1): the value of hard, minus soft's gradient
    ids_BL, of_discriminator = batch.input_ids_BL.clone(), model.discriminator.embeddings
    table = of_discriminator.word_embeddings.weight
    rows = [row.clone() for row in table[batch.input_ids_BL]]
    for row in range(len(ids_BL)):
        for slot in range(batch.masked_positions_BK.shape[1]):
            if batch.masked_valid_BK[row, slot]:
                position = batch.masked_positions_BK[row, slot]
                rows[row][position] = y_BKV[row, slot] @ table.detach() + (table - table.detach())[tokens_BK[row, slot]]
                ids_BL[row, position] = tokens_BK[row, slot]
    position_L = torch.arange(ids_BL.shape[1])
    embedded_BLE = torch.stack(rows) + of_discriminator.token_type_embeddings(batch.token_type_ids_BL)
    embedded_BLE = of_discriminator.LayerNorm(embedded_BLE + of_discriminator.position_embeddings(position_L))
    hidden_BLH = model.discriminator.embeddings_project(embedded_BLE)
    d_BL = model.discriminator_predictions(model.discriminator.encoder(hidden_BLH, batch.attention_mask_BL))
    loss_BL = discriminator_loss(d_BL, ids_BL != batch.input_ids_BL)
    loss_D = loss_BL.where(batch.attention_mask_BL, 0.0).sum() / batch.token_count
    return loss_BK.where(batch.masked_valid_BK, 0.0).sum() / batch.masked_count, loss_D, tokens_BK


@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_losses_draws_and_all_gradients_are_those_of_the_straight_through_estimator(tau: float, batch: Batch) -> None:
    model, batch = model_of(tau=tau), double(batch)
    output = model(batch)
    loss_G, loss_D, tokens_BK = reference(model, batch)
    valid_BK = batch.masked_valid_BK
    assert torch.equal(output.draw.tokens_BK[valid_BK], tokens_BK[valid_BK])
    torch.testing.assert_close(output.loss, loss_G + 50 * loss_D)
    ours, theirs = gradients(model, output.loss), gradients(model, loss_G + 50 * loss_D)
    assert ours[W].abs().max() > 1e-6
    torch.testing.assert_close(ours, theirs)


def test_the_gradient_of_w_is_a_finite_difference_of_minus_the_loss_along_the_soft_embeddings(batch: Batch) -> None:
    """-L_D is linearized in the embeddings of x'; these follow w through softmax((s + g) / tau)."""
    model, batch = model_of(), double(batch)
    hidden = scores(model, batch)
    table = model.discriminator.embeddings.word_embeddings.weight.detach()
    drawn = model.draw(*model.generate(batch), batch.uniforms_BK)
    assert drawn.offset_BKE is not None
    leaf_BKE = torch.zeros_like(drawn.offset_BKE).requires_grad_()
    d_BL, replaced_BL = model.discriminate(batch, drawn.tokens_BK, leaf_BKE)
    loss = 50 * discriminator_loss(d_BL, replaced_BL).where(batch.attention_mask_BL, 0.0).sum() / batch.token_count
    (slope_BKE,) = torch.autograd.grad(loss, leaf_BKE)
    z_NBKV = torch.stack([model.scores(h_BKH) for h_BKH in hidden]).detach()
    noise_BKV = gumbel(batch.uniforms_BK, z_NBKV.shape[-1])

    @torch.no_grad()
    def minus_loss(w: Tensor) -> Tensor:
        pi_NBK = torch.stack([h_BKH @ w[0] for h_BKH in hidden]).softmax(0)
        s_BKV = (pi_NBK[..., None] * z_NBKV).sum(0)
        return -(slope_BKE * (((s_BKV + noise_BKV) / model.objective.tau).softmax(-1) @ table)).sum()

    w, step = model.sampler_mixture.weight.detach(), 1e-6
    found = gradients(model, model(batch).loss)[W]
    for place in range(w.shape[1]):
        nudge = torch.zeros_like(w).index_fill_(1, torch.tensor([place]), step)
        expected = (minus_loss(w + nudge) - minus_loss(w - nudge)) / (2 * step)
        torch.testing.assert_close(found[0, place], expected, rtol=1e-5, atol=1e-9)


def test_the_reversed_gradient_changes_no_other_gradient_and_no_value(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = model_of(), double(batch)
    output = model(batch)
    ours = gradients(model, output.loss)
    whole = Amos.draw
    monkeypatch.setattr(Amos, "draw", lambda *given: whole(*given)._replace(offset_BKE=None))
    cut = model(batch)
    theirs = gradients(model, cut.loss)
    assert torch.equal(output.d_BL, cut.d_BL) and output.loss == cut.loss
    assert ours[W].any() and not theirs[W].any()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if name != W)


def test_recomputed_layers_give_the_same_gradients(batch: Batch) -> None:
    model = model_of()
    plain = gradients(model, model(double(batch)).loss)
    for module in model.modules():
        if isinstance(module, LayerStack):
            module.recompute = True
    assert all(torch.equal(g, plain[name]) for name, g in gradients(model, model(double(batch)).loss).items())


@pytest.mark.parametrize(
    ("layers", "heads", "depths"), [(12, 3, (4, 8, 12)), (2, 3, (1, 2)), (3, 2, (1, 3)), (4, 1, (4,))]
)
def test_heads_are_at_evenly_spaced_layers_up_to_the_last(layers: int, heads: int, depths: tuple[int, ...]) -> None:
    config = SMALL_MODEL.model_copy(update={"layers": layers})
    assert new_model("amos", config, heads=heads).states_at == depths


def test_with_one_head_x_is_drawn_from_p_g_and_nothing_reaches_w(batch: Batch) -> None:
    model = model_of(heads=1)
    output = model(double(batch))
    torch.testing.assert_close(output.draw.log_q_BK, output.draw.log_p_G_BK)
    assert gradients(model, output.loss)[W].abs().max() < 1e-12


def test_draws_have_the_mixtures_frequencies(batch: Batch) -> None:
    """Chi-square of 20,000 draws over the tokens of one position: 6 degrees of freedom, 99.9% below 22.5."""
    model, size = model_of().eval(), 20_000
    hidden_NBKH, prediction = model.generate(double(batch))
    one = prediction._replace(
        p_BKV=prediction.p_BKV[:1, :1].expand(size, 1, -1),
        log_p_original_BK=prediction.log_p_original_BK[:1, :1].expand(size, 1),
        original_BK=prediction.original_BK[:1, :1].expand(size, 1),
        top_BK=prediction.top_BK[:1, :1].expand(size, 1),
    )
    index = torch.arange(size)
    u_BK = torch.from_numpy(uniforms(7, index.numpy(), (0 * index).numpy(), (0 * index[:, None]).numpy())).double()
    with torch.no_grad():
        drawn = model.draw(hidden_NBKH[:, :1, :1].expand(-1, size, -1, -1), one, u_BK)
    z_NV = torch.stack([model.scores(h_BKH)[0, 0] for h_BKH in scores(model, batch)])
    pi_N = torch.stack([model.sampler_mixture(h_BKH)[0, 0, 0] for h_BKH in scores(model, batch)]).softmax(0)
    q_V = (pi_N @ z_NV).softmax(-1).detach()
    counts_V = drawn.tokens_BK[:, 0].bincount(minlength=len(q_V)).double()
    torch.testing.assert_close(drawn.log_q_BK[:, 0], q_V[drawn.tokens_BK[:, 0]].log())
    assert ((counts_V - size * q_V) ** 2 / (size * q_V)).sum() < 22.5


def test_the_noise_is_gumbels_and_independent_between_tokens_and_positions() -> None:
    """Chi-square of the uniforms behind 250,000 numbers in 100 bins: 99 degrees of freedom, 99.9% below 149."""
    index = torch.arange(500).numpy()
    u_X = torch.from_numpy(uniforms(3, index, 0 * index, 0 * index[:, None]))[:, 0]
    noise_XV = gumbel(u_X, 500)
    assert noise_XV.dtype == torch.float32 and noise_XV.isfinite().all()
    uniform_XV = (-(-noise_XV.double()).exp()).exp()
    counts = (uniform_XV * 100).long().flatten().bincount(minlength=100)
    assert ((counts - 2500.0) ** 2 / 2500).sum() < 149
    for first, second in (
        (uniform_XV[:, :-1], uniform_XV[:, 1:]),
        (uniform_XV[:-1], uniform_XV[1:]),
        (u_X[:, None].expand(-1, 500).double(), uniform_XV),
    ):
        correlation = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]
        assert abs(correlation) < 0.01 if first.shape != uniform_XV.shape else abs(correlation) < 0.05
    assert torch.equal(gumbel(u_X[3:5], 500), noise_XV[3:5])
    assert torch.equal(gumbel(u_X, 70), noise_XV[:, :70])


@pytest.mark.parametrize("sharing", ["nes", "gdes"])
def test_without_shared_embeddings_the_discriminators_loss_reaches_of_the_generator_only_w(
    sharing: str, batch: Batch
) -> None:
    model = model_of(model=SMALL_MODEL.model_copy(update={"embedding_sharing": sharing}))
    whole = gradients(model, model(double(batch)).loss)
    model.objective = model.objective.model_copy(update={"lambda2": 0.0})
    without = gradients(model, model(double(batch)).loss)
    zero = {name for name in whole if name.endswith("key.bias")}  # softmax ignores it: its gradient is rounding
    reached = {name for name in whole if not torch.allclose(whole[name], without[name], rtol=1e-9, atol=0)} - zero
    assert {name for name in reached if not name.startswith("discriminator")} == {W}
    tables = {name for name in whole if name.startswith("discriminator.embeddings.")}
    assert tables and tables <= reached


@pytest.mark.parametrize("sharing", ["nes", "gdes"])
def test_the_reversed_gradient_reads_the_discriminators_embeddings_under_any_sharing(
    sharing: str, batch: Batch
) -> None:
    """At the start all of these embeddings are equal; later, those of `gdes` are the sum."""
    found = []
    for name in ("es", sharing):
        model = model_of(model=SMALL_MODEL.model_copy(update={"embedding_sharing": name}))
        found.append(gradients(model, model(double(batch)).loss)[W])
    assert found[0].abs().max() > 0 and torch.allclose(found[0], found[1], rtol=1e-9, atol=0)
    if sharing == "gdes":
        embeddings = model.discriminator.embeddings
        torch.nn.init.normal_(embeddings.word_embeddings.weight)
        weights_XV = torch.rand(3, len(embeddings.word_embeddings.weight), dtype=torch.float64)
        total_VE = embeddings.shared.word_embeddings.weight + embeddings.word_embeddings.weight
        assert torch.allclose(embeddings.mix_words(weights_XV), weights_XV @ total_VE)
