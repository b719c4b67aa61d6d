"""Claims about the running sums of metrics."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy, pearsonr
from sklearn.metrics import precision_score, recall_score, roc_auc_score
from torch import Tensor

from electra_sampler.foundation.config import ConfigError
from pretrain.data.batches import Batch
from pretrain.method.electra import Electra, SamplerLoss, no_loss
from pretrain.method.objective import Detected, Output
from pretrain.method.sampling import Draw, Prediction, draw_from
from pretrain.model.distribution import Dense
from pretrain.training.metrics import LOGIT, PERCENTILES, Bins, MetricTotals, describe, evaluate, histograms, summary
from tests.pretrain.conftest import new_model
from tests.pretrain.training.conftest import make_engine

CPU = torch.device("cpu")


def summed_up(batch: Batch, output: Output, watched: bool = False) -> dict[str, float]:
    """The summary of one forward."""
    totals = MetricTotals(CPU)
    totals.add(batch, output, watched)
    return summary(totals.sums)


def test_the_summary_equals_a_plain_count_over_positions(batch: Batch, make_electra: Callable[..., Electra]) -> None:
    output = make_electra(name="hp_loss", gamma=1.0)(batch)
    values = summed_up(batch, output)
    right_masked, right, replaced, loss_D = 0, 0, 0, 0.0
    for b in range(3):
        masked = batch.masked_positions_BK[b][batch.masked_valid_BK[b]].tolist()
        for position in range(int(batch.attention_mask_BL[b].sum())):
            correct = bool(output.detected.d_BL[b, position] > 0) == bool(output.detected.replaced_BL[b, position])
            right += correct
            right_masked += correct and position in masked
            replaced += bool(output.detected.replaced_BL[b, position])
            loss_D += output.detected.discriminator_loss_BL[b, position].item()
    visible, valid = batch.attention_mask_BL, batch.masked_valid_BK
    true, said = output.detected.replaced_BL[visible].numpy(), (output.detected.d_BL[visible] > 0).numpy()
    assert 0 < (true & said).sum() < min(true.sum(), said.sum())
    expected = {
        "accuracy_masked": right_masked / 5,
        "accuracy_all": right / 23,
        "accuracy_unmasked": (right - right_masked) / 18,
        "replaced_share": replaced / 23,
        "replace_rate": replaced / 5,
        "discriminator_loss": loss_D / 23,
        "discriminator_entropy": entropy([replaced / 23, 1 - replaced / 23]),
        "precision": precision_score(true, said),
        "recall": recall_score(true, said),
        "mlm_loss": -output.log_p_original_BK[valid].mean().item(),
        "generator_loss": output.generator_loss_BK[valid].mean().item(),
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights * torch.nan,
        lambda weights: weights / 0,
        lambda weights: weights * 0,
        lambda weights: -weights,
        lambda weights: weights - weights.mean(-1, keepdim=True) / 2,
    ],
    ids=["NaN", "infinite", "zero", "negative", "partly negative"],
)
def test_replacements_from_weights_that_are_no_distribution_are_refused_where_they_are_reported(
    change: Callable[[Tensor], Tensor], batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name="electra")

    def draw(batch: Batch, prediction: Prediction) -> tuple[Draw, SamplerLoss]:
        q = Dense(change(prediction.p.dense().weights_XV))
        return draw_from(q, prediction, batch.uniforms_BK), no_loss

    model.draw = draw  # type: ignore[method-assign]
    output = model(batch, entropies=True)
    with pytest.raises(ConfigError, match=r"^objective: 5 of 5 replacements were drawn by weights that are no dist"):
        summed_up(batch, output, watched=True)


@pytest.mark.parametrize("part", ["tokens_BK", "log_p_G_BK", "log_q_BK", "log_max_q_BK", "L_S"])
@pytest.mark.parametrize(
    "change", [Tensor.sum, lambda part: part[0], lambda part: part[:, :1]], ids=["[]", "[K]", "[B, 1]"]
)
def test_a_draw_without_one_value_per_masked_position_is_refused_by_name_although_its_shape_broadcasts(
    part: str, change: Callable[[Tensor], Tensor], batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name="electra")

    def draw(batch: Batch, prediction: Prediction) -> tuple[Draw, SamplerLoss]:
        drawn, _ = model.draw_from_p_G(batch, prediction)
        if part == "L_S":
            return drawn, lambda d_BK, loss_D_BK: change(loss_D_BK)
        return drawn._replace(**{part: change(getattr(drawn, part))}), no_loss

    model.draw = draw  # type: ignore[method-assign]
    with pytest.raises(
        ConfigError, match=rf"^objective: {part} of a draw has shape \[.*\], expected \[3, 2\], a value"
    ):
        MetricTotals(CPU).add(batch, model(batch), watched=False)


B, L, K = 64, 60, 9


def random_forward(seed: int) -> tuple[Batch, Any]:
    """Plausible random outputs: logits near the truth, estimates near the loss, sequences of any length."""
    g = torch.Generator().manual_seed(seed)
    visible = torch.arange(L) < torch.randint(10, L + 1, (B, 1), generator=g)
    positions = torch.rand(B, L, generator=g).masked_fill(~visible, 2).argsort(1)[:, :K]
    valid = torch.arange(K) < torch.randint(1, K + 1, (B, 1), generator=g)
    positions = positions.where(valid, 0)
    replaced_BK = valid & (torch.rand(B, K, generator=g) < 0.6)
    replaced = torch.zeros(B, L, dtype=torch.int64).scatter_add(1, positions, replaced_BK.long()) > 0
    d = torch.randn(B, L, generator=g) * 2 + 2 * replaced - 1
    loss = torch.nn.functional.binary_cross_entropy_with_logits(d, replaced.float(), reduction="none")
    z = -d.gather(1, positions) + torch.randn(B, K, generator=g)
    log_p = [torch.rand(B, K, generator=g).log() for _ in range(4)]
    drawn = Draw(
        tokens_BK=torch.zeros(B, K, dtype=torch.int64),
        log_p_G_BK=log_p[0],
        log_q_BK=log_p[1],
        log_max_q_BK=log_p[3],
        entropy_q_BK=torch.rand(B, K, generator=g) * 7,
        estimated_loss_BK=torch.nn.functional.softplus(torch.where(replaced_BK, z, -z)),
    )
    ids = torch.zeros(B, L, dtype=torch.int64)
    uniforms, keep_uniforms = torch.rand(2, B, K, generator=g)
    batch = Batch(ids, visible, ids, positions, valid, uniforms, keep_uniforms, 1.0, 1.0)
    nothing = torch.zeros(B, K)
    return batch, Output(
        loss=nothing.sum(),
        generator_loss_BK=nothing,
        log_p_original_BK=nothing,
        top_BK=drawn.tokens_BK,
        log_max_p_G_BK=log_p[2],
        entropy_p_G_BK=torch.rand(B, K, generator=g) * 5,
        detected=Detected(drawn, nothing, loss, d, replaced),
    )


def totalled(*forwards: tuple[Batch, Output]) -> MetricTotals:
    totals = MetricTotals(CPU)
    for batch, output in forwards:
        totals.add(batch, output, watched=True)
    return totals


def test_the_auc_is_scikit_learns_up_to_the_width_of_a_bin() -> None:
    batch, output = random_forward(0)
    values = describe(totalled((batch, output)).distributions)
    for name, group in (("auc_all", batch.attention_mask_BL), ("auc_masked", batch.masked_BL.bool())):
        truth, d = output.detected.replaced_BL[group].numpy(), output.detected.d_BL[group]
        assert 0.6 < roc_auc_score(truth, d) < 0.95
        assert values[name] == pytest.approx(roc_auc_score(truth, LOGIT.place(d)), abs=1e-12)
        assert values[name] == pytest.approx(roc_auc_score(truth, d), abs=1e-3)


def test_correlations_by_class_of_the_drawn_token_are_scipys() -> None:
    batch, output = random_forward(1)
    found = describe(totalled((batch, output)).distributions)["estimate_correlation"]
    valid, estimates = batch.masked_valid_BK, output.detected.draw.estimated_loss_BK
    other = output.detected.replaced_BL.gather(1, batch.masked_positions_BK)[valid].numpy()
    estimate = estimates[valid].double().numpy()
    actual = output.detected.discriminator_loss_BL.gather(1, batch.masked_positions_BK)[valid].double().numpy()
    for name, group in (("original", ~other), ("replaced", other), ("all", other | ~other)):
        assert found[name] == pytest.approx(pearsonr(estimate[group], actual[group]).statistic, rel=1e-5)


def test_probabilities_entropies_and_ratios_are_numpys() -> None:
    batch, output = random_forward(2)
    values, valid, drawn = (
        describe(totalled((batch, output)).distributions),
        batch.masked_valid_BK,
        output.detected.draw,
    )
    for name, log_max, entropy_BK in (
        ("p_G", output.log_max_p_G_BK, output.entropy_p_G_BK),
        ("p_S", drawn.log_max_q_BK, drawn.entropy_q_BK),
    ):
        counts = np.histogram(log_max[valid].exp().numpy(), np.linspace(0, 1, 11))[0]
        assert values["max_probability"][name] == pytest.approx(counts / counts.sum())
        assert values["entropy"][name] == pytest.approx(entropy_BK[valid].mean().item(), rel=1e-6)
    ratio = drawn.log_ratio_BK[valid].exp()
    for percentile in PERCENTILES:
        exact = np.percentile(ratio.numpy(), percentile)
        assert values[f"ratio_p{percentile}"] == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("kind", ["sums", "distributions"])
def test_sums_of_parts_and_ranks_equal_the_sum_of_the_whole(kind: str) -> None:
    forwards = [random_forward(seed) for seed in range(3)]
    apart = sum((getattr(totalled(forward), kind) for forward in forwards), torch.zeros(()))
    assert torch.allclose(getattr(totalled(*forwards), kind), apart, rtol=1e-12)


OF_GENERATOR = {"tokens", "generator_loss", "mlm_loss", "mlm_accuracy", "entropy", "max_probability"}
OF_DISCRIMINATOR = {
    *("sampler_loss", "discriminator_loss", "discriminator_entropy", "replaced_share", "replace_rate"),
    *("accuracy_masked", "accuracy_unmasked", "accuracy_all", "precision", "recall", "auc_all", "auc_masked"),
    *(f"ratio_p{percentile}" for percentile in PERCENTILES),
}


@pytest.mark.parametrize("name", ["electra", "hp_loss", "hp_loss_power", "hp_dist", "oracle", "mlm"])
def test_each_objective_reports_the_quantities_it_has(
    name: str, batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = new_model(name) if name == "mlm" else make_electra(name=name)
    totals = MetricTotals(CPU)
    for seed in range(9):  # often enough for both classes at the masked positions
        uniforms = torch.rand(3, 2, generator=torch.Generator().manual_seed(seed))
        totals.add(batch, model(batch._replace(uniforms_BK=uniforms), entropies=True), watched=True)
    values = summary(totals.sums) | describe(totals.distributions)
    both = {"p_G"} if name == "mlm" else {"p_G", "p_S"}
    assert values["entropy"].keys() == values["max_probability"].keys() == both
    assert all(sum(shares) == pytest.approx(1) for shares in values["max_probability"].values())
    estimated = {"estimate_correlation"} if name.startswith("hp_loss") else set()
    assert values.keys() == OF_GENERATOR | (OF_DISCRIMINATOR if name != "mlm" else set()) | estimated
    if name == "electra":
        assert values["entropy"]["p_S"] == pytest.approx(values["entropy"]["p_G"])


@pytest.mark.parametrize(("name", "replaces_p_G"), [("hp_loss", True), ("electra", False), ("mlm", False)])
def test_an_evaluation_reports_accuracy_under_both_distributions_where_a_sampler_replaces_p_G(
    name: str, replaces_p_G: bool, batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name=name)
    values = evaluate(make_engine(model), [batch], progress=lambda said: None)
    due = {}
    if replaces_p_G:
        of_p_G = summed_up(batch, model(batch, from_p_G=True))
        assert of_p_G["accuracy_all"] != values["accuracy_all"], "the draws differ"
        for name in ("accuracy_masked", "accuracy_all"):
            due[f"{name}_under"] = {"p_G": of_p_G[name], "p_S": values[name]}
    assert {key: value for key, value in values.items() if key.endswith("_under")} == due


def test_a_constant_estimate_has_no_correlation(batch: Batch) -> None:
    model = new_model("hp_loss")  # initially D_hat is one half everywhere
    totals = MetricTotals(CPU)
    totals.add(batch, model(batch, entropies=True), watched=True)
    assert "estimate_correlation" not in describe(totals.distributions)


def test_histograms_hold_every_counted_value_and_no_others() -> None:
    batch, output = random_forward(3)
    found = histograms(totalled((batch, output)).distributions)
    visible = batch.attention_mask_BL
    for name, truth in (("logit/original", False), ("logit/replaced", True)):
        edges, counts = found[name]
        d = output.detected.d_BL[visible & (output.detected.replaced_BL == truth)]
        assert np.abs(counts - np.histogram(d.double().numpy(), edges)[0]).sum() <= 2  # values on an edge in fp32
        assert sum(counts) == len(d)
    assert {len(counts) for _, counts in found.values()} == {100, 120}
    assert histograms(torch.zeros_like(totalled((batch, output)).distributions)) == {}


def test_values_beyond_the_bins_count_at_their_ends_and_nan_is_harmless() -> None:
    place = Bins(-1.0, 1.0, 4).place(torch.tensor([-torch.inf, -9.0, -0.6, 0.1, 1.0, torch.inf, torch.nan]))
    assert place.tolist() == [0, 0, 0, 2, 3, 3, 0]
