"""Masks chosen by what the discriminator finds hard: its mean loss at masked positions, per original token.

Shape letters: B batch, K masked positions per sequence, V vocabulary.
"""

import numpy as np
import torch

from pretrain.data.batches import WEIGHTS_EVERY, Batch, TrainingBatches
from pretrain.job.processes import World
from pretrain.method.objective import Output
from pretrain.training.state import TrainingState

UNIT = 1 << 20
"""Losses and weights are whole multiples of 1 / UNIT, so that sums are equal in any order and over any restarts."""
KEPT = 0.9
"""Share of the older losses that is kept when the weights change: the mean is over about ten such intervals."""


class MasksInTurn:
    """Takes the masks in turn, so that nothing of the losses has to be known."""

    every: tuple[int, ...] = ()
    """Intervals, in steps, at which an outcome is read before the next step begins."""

    def add(self, batch: Batch, output: Output) -> None:
        """Adds the losses of one micro-batch, on the device."""

    def step_done(self, step: int) -> None:
        """Changes the choice if that is due after the step. Collective."""

    def saved(self) -> list[list[list[float]]]:
        """Returns the `token_losses` of a checkpoint. Collective."""
        return []


class MaskChoice(MasksInTurn):
    """Tracks each token's mean L_D where it is masked; these means choose the masks."""

    every = (1,)  # a checkpoint holds no losses of the next step, and any step may be saved

    def __init__(self, exponent: float, state: TrainingState, batches: TrainingBatches, world: World) -> None:
        """Continues from `state`, and sets the weights of `batches`."""
        self._exponent, self._batches, self._world = exponent, batches, world
        none = np.zeros((2, batches.shards.manifest.vocab_size), np.int64)
        known_2V, recent_2V = state.token_losses or (none, none)  # sums and numbers of losses
        self._known_2V = np.array(known_2V, np.float64)
        self._recent_2V = torch.tensor(recent_2V if world.is_first else none, device=world.device)
        batches.weight_V = weights(self._known_2V, exponent)

    def add(self, batch: Batch, output: Output) -> None:
        assert output.detected
        positions_BK, valid_BK = batch.masked_positions_BK, batch.masked_valid_BK
        loss_BK = output.detected.discriminator_loss_BL.gather(1, positions_BK)
        loss_BK = loss_BK.nan_to_num(0.0, 0.0, 0.0)  # fp16 may overflow
        terms_2BK = torch.stack(((loss_BK * UNIT).round().long(), torch.ones_like(positions_BK))) * valid_BK
        self._recent_2V.index_add_(1, batch.input_ids_BL.gather(1, positions_BK).flatten(), terms_2BK.flatten(1))

    def step_done(self, step: int) -> None:
        if step % WEIGHTS_EVERY:
            return
        recent_2V = self._world.sum_over_ranks(self._recent_2V).cpu().numpy()
        self._known_2V = KEPT * self._known_2V + recent_2V / np.array([[UNIT], [1]])
        self._recent_2V.zero_()
        self._batches.weight_V = weights(self._known_2V, self._exponent)

    def saved(self) -> list[list[list[float]]]:
        """Returns older sums, and recent ones in units of 1 / UNIT."""
        return [self._known_2V.tolist(), self._world.sum_over_ranks(self._recent_2V.clone()).tolist()]


def weights(known_2V: np.ndarray, exponent: float) -> np.ndarray:
    """Returns (a / mean)^exponent in units of 1 / UNIT, int64 [V], where a is a token's mean loss.

    `known_2V` holds sums and numbers of losses. A token without losses weighs as the mean. The bound keeps the weight
    of the longest sequence below 2^63.
    """
    sum_V, number_V = known_2V
    at_mean_V = number_V * (sum_V.sum() / max(number_V.sum(), 1.0))
    relative_V = np.divide(sum_V, at_mean_V, out=np.ones_like(sum_V), where=at_mean_V > 0)
    return np.rint(UNIT * relative_V**exponent).clip(max=2.0**46).astype(np.int64)
