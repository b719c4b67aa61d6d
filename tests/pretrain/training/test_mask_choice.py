"""Claims about the losses by token that weigh in the choice of masks: sums over positions, their mean, the weights."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pretrain.data.batches import WEIGHTS_EVERY, Batch, BatchPlan, TrainingBatches
from pretrain.data.shards import open_shards
from pretrain.method.electra import Electra
from pretrain.training.mask_choice import KEPT, UNIT, MaskChoice, weights
from pretrain.training.state import TrainingState
from tests.pretrain.training.conftest import make_engine


def test_a_tokens_weight_is_its_mean_loss_over_the_mean_to_the_power_of_the_exponent() -> None:
    known_2V = np.array([[6.0, 0.0, 1.0, 0.0, 1.0], [3.0, 0.0, 4.0, 2.0, 1.0]])  # of ten losses, 0.8 on average
    for exponent in (0.5, 1.0, 2.0):
        expected = [(2 / 0.8) ** exponent, 1, (0.25 / 0.8) ** exponent, 0, (1 / 0.8) ** exponent]
        assert weights(known_2V, exponent) / UNIT == pytest.approx(expected, abs=1e-6)


def test_before_any_loss_all_tokens_weigh_the_same() -> None:
    assert (weights(np.zeros((2, 5)), 2.0) == UNIT).all()
    assert (weights(np.array([[0.0, 0.0], [3.0, 0.0]]), 2.0) == UNIT).all()  # all losses were 0


def test_losses_are_summed_by_the_original_token_and_older_ones_fade(
    batch: Batch, make_electra: Callable[..., Electra], shards_folder: Path
) -> None:
    engine = make_engine(make_electra(name="hp_loss"))
    batches = TrainingBatches(open_shards(shards_folder), BatchPlan(3, 3, 1, 0), 0)
    choice = MaskChoice(1.0, TrainingState(), batches, engine.world)
    output = engine.forward(batch)
    sums: dict[int, list[float]] = defaultdict(list)
    for row, positions in enumerate(batch.masked_positions_BK.tolist()):
        for slot, position in enumerate(positions):
            if batch.masked_valid_BK[row, slot]:
                loss = output.detected.discriminator_loss_BL[row, position].item()
                sums[int(batch.input_ids_BL[row, position])].append(round(loss * UNIT))
    choice.add(batch, output)
    choice.add(batch, output)
    (known, recent), before = choice.saved(), batches.weight_V
    assert not np.any(known)
    assert {token: (total, recent[1][token]) for token, total in enumerate(recent[0]) if recent[1][token]} == {
        token: (2 * sum(losses), 2 * len(losses)) for token, losses in sums.items()
    }
    choice.step_done(WEIGHTS_EVERY)
    assert before is not None and batches.weight_V is not None and (batches.weight_V != before).any()
    choice.add(batch, output)
    choice.step_done(WEIGHTS_EVERY)
    known, recent = choice.saved()
    assert not np.any(recent)
    for token, losses in sums.items():
        assert known[0][token] == pytest.approx((2 * KEPT + 1) * sum(losses) / UNIT)
        assert known[1][token] == pytest.approx((2 * KEPT + 1) * len(losses))
    again = TrainingBatches(batches.shards, batches.plan, 0)
    assert MaskChoice(1.0, TrainingState(token_losses=[known, recent]), again, engine.world).saved() == [known, recent]
    assert again.weight_V is not None and (again.weight_V == batches.weight_V).all()
