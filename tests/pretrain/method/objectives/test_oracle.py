"""Claims about sampling by the discriminator's true loss."""

from collections.abc import Callable

import pytest
import torch

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.method.sampling import importance_weights
from tests.pretrain.conftest import CLS, SEP, SMALL_MODEL, VOCABULARY, new_model


@pytest.mark.parametrize("settings", [{"candidates": 1}, {"candidates": 1, "exponent": 0.0}])
def test_one_candidate_gives_electras_step_bitwise_with_the_same_dropout(
    settings: dict[str, object], batch: Batch
) -> None:
    sizes = SMALL_MODEL.model_copy(update={"dropout": 0.1, "attention_dropout": 0.1})
    outputs, gradients = [], []
    for name, switches in (("oracle", settings), ("electra", {})):
        torch.manual_seed(0)
        model = new_model(name, sizes, **switches).train()
        torch.manual_seed(1)
        outputs.append(model(batch))
        outputs[-1].loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        assert all(module.training for module in model.modules())
    ours, electras = outputs
    assert torch.equal(ours.loss, electras.loss) and torch.equal(ours.d_BL, electras.d_BL)
    assert torch.equal(ours.draw.tokens_BK, electras.draw.tokens_BK)
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
    assert torch.allclose(ours.draw.log_ratio_BK, electras.draw.log_ratio_BK, atol=1e-6)


def one_mask(rows: int) -> Batch:
    """A batch with the same sequence of six tokens in every row, one of them masked, and random uniforms."""
    ids = torch.tensor([CLS, 5, 6, 6, 5, SEP]).expand(rows, 6)
    generator = torch.Generator().manual_seed(0)
    return Batch(
        input_ids_BL=ids,
        attention_mask_BL=torch.ones_like(ids, dtype=torch.bool),
        token_type_ids_BL=torch.zeros_like(ids),
        masked_positions_BK=torch.full((rows, 1), 2),
        masked_valid_BK=torch.ones(rows, 1, dtype=torch.bool),
        uniforms_BK=torch.rand(rows, 1, generator=generator),
        keep_uniforms_BK=torch.rand(rows, 1, generator=generator),
        masked_count=float(rows),
        token_count=float(6 * rows),
    )


def p_and_losses(model: Electra) -> tuple[torch.Tensor, torch.Tensor]:
    """p_G and the discriminator's true loss of every token at the mask of `one_mask`, by brute force."""
    every = one_mask(VOCABULARY)
    _, prediction = model.generate(every)
    d_BL, replaced_BL = model.discriminate(every, torch.arange(VOCABULARY)[:, None])
    d, replaced = d_BL[:, 2], replaced_BL[:, 2]
    return prediction.p.dense().weights_XV[0, 0], -torch.where(replaced, torch.sigmoid(d), torch.sigmoid(-d)).log()


@torch.no_grad()
@pytest.mark.parametrize("exponent", [-1.0, 0.0, 1.0, 2.0])
def test_with_one_mask_and_many_candidates_the_draws_tend_to_p_g_times_a_power_of_the_loss(
    exponent: float, make_electra: Callable[..., Electra]
) -> None:
    rows = 2000
    model = make_electra(name="oracle", candidates=64, exponent=exponent).double().eval()
    for parameter in model.discriminator_predictions.parameters():
        torch.nn.init.normal_(parameter)  # losses that differ between tokens
    p_G, loss = p_and_losses(model)
    wanted = p_G * loss**exponent / (p_G * loss**exponent).sum()
    drawn = model(one_mask(rows), entropies=True).draw
    shares = torch.bincount(drawn.tokens_BK.flatten(), minlength=VOCABULARY) / rows
    assert (shares - wanted).abs().sum() / 2 < 0.03
    if exponent:
        assert (p_G - wanted).abs().sum() / 2 > 0.06
    # the estimates of the ratio and the entropy
    exact = (p_G / wanted).log()[drawn.tokens_BK]
    assert (drawn.log_ratio_BK - exact).abs().mean() < 0.2
    assert drawn.entropy_q_BK is not None
    assert drawn.entropy_q_BK.mean().item() == pytest.approx(-(wanted * wanted.log()).sum().item(), abs=0.1)


@torch.no_grad()
def test_a_constant_loss_leaves_electras_distribution(make_electra: Callable[..., Electra]) -> None:
    model = make_electra(name="oracle", candidates=3).double().eval()
    for parameter in model.discriminator_predictions.parameters():
        torch.nn.init.zeros_(parameter)  # d = 0
    p_G, loss = p_and_losses(model)
    assert loss.unique().numel() == 1
    many = one_mask(4000)
    drawn = model(many).draw
    shares = torch.bincount(drawn.tokens_BK.flatten(), minlength=VOCABULARY) / 4000
    assert (shares - p_G).abs().sum() / 2 < 0.02
    assert torch.allclose(importance_weights(drawn.log_ratio_BK, many), torch.ones((), dtype=torch.float64))


def test_it_reports_p_g_and_its_own_draws_and_needs_no_parameters(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model, plain = make_electra(name="oracle"), make_electra(name="electra")
    outputs = model.eval().outputs(batch)
    assert list(outputs) == ["p_G", "p_S"]
    assert torch.equal(outputs["p_G"].draw.tokens_BK, plain.eval()(batch).draw.tokens_BK)
    assert torch.equal(outputs["p_S"].draw.tokens_BK, model(batch).draw.tokens_BK)
    assert model.state_dict().keys() == plain.state_dict().keys()
