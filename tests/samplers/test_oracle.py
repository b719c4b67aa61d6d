"""Claims about sampling by the discriminator's true loss."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from electra_sampler.foundation.ordering import mixed
from pretrain.data.batches import Batch, make_batch
from pretrain.data.shards import Shards
from pretrain.method.electra import Electra
from pretrain.method.sampling import draw_from, importance_weights, predict
from pretrain.model.distribution import Dense
from samplers.oracle import more_uniforms, resample
from tests.pretrain.conftest import CLS, SEP, SMALL_MODEL, VOCABULARY, new_model


@pytest.mark.parametrize("settings", [{"candidates": 1}, {"candidates": 1, "exponent": 0.0}])
def test_one_candidate_gives_electras_step_bitwise_with_the_same_dropout(
    settings: dict[str, Any], batch: Batch
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
    assert torch.equal(ours.loss, electras.loss) and torch.equal(ours.detected.d_BL, electras.detected.d_BL)
    assert torch.equal(ours.detected.draw.tokens_BK, electras.detected.draw.tokens_BK)
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
    assert torch.allclose(ours.detected.draw.log_ratio_BK, electras.detected.draw.log_ratio_BK, atol=1e-6)


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
    prediction = model.predict(every)
    d_BL, replaced_BL = model.discriminate(every, torch.arange(VOCABULARY)[:, None])
    d, replaced = d_BL[:, 2], replaced_BL[:, 2]
    return prediction.p.dense().weights_XV[0, 0], -torch.where(replaced, torch.sigmoid(d), torch.sigmoid(-d)).log()


@torch.no_grad()
@pytest.mark.parametrize("exponent", [-1.0, 0.0, 2.0])
def test_with_one_mask_and_many_candidates_the_draws_tend_to_p_g_times_a_power_of_the_loss(
    exponent: float, make_electra: Callable[..., Electra]
) -> None:
    rows = 2000
    model = make_electra(name="oracle", candidates=64, exponent=exponent).double().eval()
    for parameter in model.discriminator_predictions.parameters():
        torch.nn.init.normal_(parameter)  # losses that differ between tokens
    p_G, loss = p_and_losses(model)
    wanted = p_G * loss**exponent / (p_G * loss**exponent).sum()
    drawn = model(one_mask(rows), entropies=True).detected.draw
    shares = torch.bincount(drawn.tokens_BK.flatten(), minlength=VOCABULARY) / rows
    assert (shares - wanted).abs().sum() / 2 < 0.03
    if exponent:
        assert (p_G - wanted).abs().sum() / 2 > 0.06
    # the estimates of the ratio and the entropy
    exact = (p_G / wanted).log()[drawn.tokens_BK]
    assert (drawn.log_ratio_BK - exact).abs().mean() < 0.2
    assert drawn.entropy_q_BK.mean().item() == pytest.approx(-(wanted * wanted.log()).sum().item(), abs=0.1)


@torch.no_grad()
def test_a_constant_loss_leaves_electras_distribution(make_electra: Callable[..., Electra]) -> None:
    model = make_electra(name="oracle", candidates=3).double().eval()
    for parameter in model.discriminator_predictions.parameters():
        torch.nn.init.zeros_(parameter)  # d = 0
    p_G, loss = p_and_losses(model)
    assert loss.unique().numel() == 1
    many = one_mask(4000)
    drawn = model(many).detected.draw
    shares = torch.bincount(drawn.tokens_BK.flatten(), minlength=VOCABULARY) / 4000
    assert (shares - p_G).abs().sum() / 2 < 0.02
    assert torch.allclose(importance_weights(drawn.log_ratio_BK, many), torch.ones((), dtype=torch.float64))


def test_it_reports_p_g_and_its_own_draws_and_needs_no_parameters(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model, plain = make_electra(name="oracle"), make_electra(name="electra")
    outputs = model.eval().outputs(batch).items()
    drawn = {name: output.detected.draw.tokens_BK for name, output in outputs if output.detected}
    assert list(drawn) == ["p_G", "p_S"]
    assert torch.equal(drawn["p_G"], plain.eval()(batch).detected.draw.tokens_BK)
    assert torch.equal(drawn["p_S"], model(batch).detected.draw.tokens_BK)
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_candidates_are_chosen_in_proportion_to_their_weights_and_the_ratio_of_the_choice_has_the_mean_1() -> None:
    rows, q = 10_000, torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    p_BKV = q.expand(rows, 1, 3)
    batch = one_mask(rows)._replace(input_ids_BL=torch.zeros(rows, 6, dtype=torch.int64))
    prediction = predict(batch, p_BKV, Dense(p_BKV), gamma=None)
    candidates = [draw_from(Dense(p_BKV), prediction, torch.full((rows, 1), uniform)) for uniform in (0.1, 0.6, 0.2)]
    assert [one.tokens_BK[0].item() for one in candidates] == [0, 1, 0]
    weights = torch.tensor([0.2, 0.3, 1.5], dtype=torch.float64)
    grid = ((torch.arange(rows) + 0.5) / rows)[:, None]
    drawn = resample(candidates, weights.expand(rows, 1, 3), grid, entropies=False)
    assert (drawn.tokens_BK == 1).double().mean().item() == pytest.approx(0.15, abs=1e-4)
    assert drawn.log_ratio_BK.exp().mean().item() == pytest.approx(1, rel=1e-3)
    mean = weights.mean()
    assert torch.allclose(drawn.log_ratio_BK.exp().unique(), (mean / weights).sort().values)
    assert drawn.entropy_q_BK is None
    asked = resample(candidates, weights.expand(rows, 1, 3), grid, entropies=True)
    shares = weights / weights.sum()
    likely = (torch.tensor([0.5, 0.25, 0.5], dtype=torch.float64) * weights / mean).clamp(max=1).log()
    assert asked.entropy_q_BK is not None and torch.allclose(asked.entropy_q_BK, -(shares * likely).sum())
    assert torch.allclose(asked.log_max_q_BK, likely.max())


def test_further_uniforms_are_uniform_independent_of_the_first_and_do_not_depend_on_their_number(
    shards_folder: Path,
) -> None:
    batch = make_batch(Shards(shards_folder), np.arange(400), np.zeros(400, dtype=np.int64), seed=0)
    more = [values_BK[batch.masked_valid_BK].numpy() for values_BK in more_uniforms(batch, 4)]
    all_of_them = [batch.uniforms_BK[batch.masked_valid_BK].numpy(), *more]
    for values in more:
        assert values.dtype == np.float32 and values.min() > 0 and values.max() < 1
        assert kstest(values, "uniform").pvalue > 1e-4
    for one, other in combinations(all_of_them, 2):
        counts = np.histogram2d(one, other, bins=4, range=[(0, 1), (0, 1)])[0]
        assert chisquare(counts.ravel()).pvalue > 1e-4
    assert all(torch.equal(*pair) for pair in zip(more_uniforms(batch, 2), more_uniforms(batch, 4), strict=False))


def test_further_uniforms_are_the_hash_of_their_number_keyed_by_both_uniforms(shards_folder: Path) -> None:
    batch = make_batch(Shards(shards_folder), np.arange(8), np.zeros(8, dtype=np.int64), seed=0)
    first, second = (
        (values_BK.double().numpy() * 2**24).astype(np.uint64)
        for values_BK in (batch.uniforms_BK, batch.keep_uniforms_BK)
    )
    for number, values_BK in enumerate(more_uniforms(batch, 3), 1):
        bits = mixed(np.full(first.shape, number), first << np.uint64(24) | second) >> np.uint64(41)
        assert np.array_equal(values_BK.numpy(), (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23))
