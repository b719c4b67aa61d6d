"""Claims about the running sums of metrics."""

from collections.abc import Callable

import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import precision_score, recall_score

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.training.metrics import MetricSums, summary
from tests.pretrain.conftest import new_model


def test_the_summary_equals_a_plain_count_over_positions(batch: Batch, make_electra: Callable[..., Electra]) -> None:
    output = make_electra(name="hp_loss", gamma=1.0)(batch)
    sums = MetricSums(torch.device("cpu"))
    sums.add(batch, output)
    values = summary(sums.vector)
    right_masked, right, replaced, loss_D = 0, 0, 0, 0.0
    for b in range(3):
        masked = batch.masked_positions_BK[b][batch.masked_valid_BK[b]].tolist()
        for position in range(int(batch.attention_mask_BL[b].sum())):
            correct = bool(output.d_BL[b, position] > 0) == bool(output.replaced_BL[b, position])
            right += correct
            right_masked += correct and position in masked
            replaced += bool(output.replaced_BL[b, position])
            loss_D += output.discriminator_loss_BL[b, position].item()
    assert values["accuracy_masked"] == pytest.approx(right_masked / 5)
    assert values["accuracy_all"] == pytest.approx(right / 23)
    assert values["replaced_share"] == pytest.approx(replaced / 23)
    assert values["discriminator_loss"] == pytest.approx(loss_D / 23)
    assert values["replace_rate"] == pytest.approx(replaced / 5)
    assert values["accuracy_unmasked"] == pytest.approx((right - right_masked) / 18)
    assert values["discriminator_entropy"] == pytest.approx(entropy([replaced / 23, 1 - replaced / 23]))
    visible = batch.attention_mask_BL
    true, said = output.replaced_BL[visible].numpy(), (output.d_BL[visible] > 0).numpy()
    assert 0 < (true & said).sum() < min(true.sum(), said.sum())
    assert values["precision"] == pytest.approx(precision_score(true, said))
    assert values["recall"] == pytest.approx(recall_score(true, said))
    valid = batch.masked_valid_BK
    assert values["mlm_loss"] == pytest.approx(-output.log_p_original_BK[valid].mean().item(), rel=1e-6)
    assert values["generator_loss"] == pytest.approx(output.generator_loss_BK[valid].mean().item(), rel=1e-6)


def test_sums_of_parts_equal_the_sum_of_the_whole(batch: Batch, make_electra: Callable[..., Electra]) -> None:
    model = make_electra(name="hp_loss").eval()
    whole, parts = MetricSums(torch.device("cpu")), MetricSums(torch.device("cpu"))
    whole.add(batch, model(batch))
    for row in range(3):
        part = Batch(*(x[row : row + 1] if isinstance(x, torch.Tensor) else x for x in batch))
        parts.add(part, model(part))
    assert torch.allclose(whole.vector, parts.vector, rtol=1e-5)


def test_without_a_discriminator_only_the_generators_metrics_are_summed(batch: Batch) -> None:
    model = new_model("mlm")
    sums = MetricSums(torch.device("cpu"))
    sums.add(batch, model(batch))
    assert summary(sums.vector).keys() == {"tokens", "generator_loss", "mlm_loss", "mlm_accuracy"}
