"""Sampling by the discriminator's true loss, measured rather than estimated: the ceiling for any sampling head.

Shape letters: B batch, C candidates, K masked positions per sequence, H hidden size.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra, ElectraOutput, ReplacementConfig
from pretrain.method.losses import discriminator_loss
from pretrain.method.objectives.power import LEAST_POWERED_LOSS, Exponent
from pretrain.method.sampling import Draw, Prediction, resample


class Oracle(Electra):
    """Draws several candidates per position from p_G, and chooses one in proportion to its true loss to the power b.

    The discriminator reads one sequence per candidate, with the k-th candidate at every masked position. So a loss is
    measured with the k-th candidates at the other positions, whereas training sees the chosen ones: with several masked
    positions, x' follows p_G L_D^b only approximately, however many candidates. With one, it tends to p_G L_D^b.
    """

    title = "ELECTRA with replacements resampled by the discriminator's true loss"
    sampling_passes = 0

    class Config(ReplacementConfig):
        name: Literal["oracle"] = "oracle"
        candidates: int = Field(default=4, ge=1, le=1024)
        """Candidates per position; each costs a forward of the discriminator, a third of its training."""
        exponent: Exponent = 1.0
        """Exponent b of the discriminator's loss, estimated (`hp_loss_power`) or true (`oracle`); 0 draws from p_G."""

        @property
        def extra_forwards(self) -> int:
            return self.candidates

    objective: Config

    def forward(self, batch: Batch, entropies: bool = False) -> ElectraOutput:
        hidden_BKH, prediction = self.generate(batch, entropies)
        return self.judge(batch, prediction, self.choose(batch, hidden_BKH, prediction))

    def outputs(self, batch: Batch) -> dict[str, ElectraOutput]:
        hidden_BKH, prediction = self.generate(batch, entropies=True)
        drawn = {
            "p_G": self.draw(hidden_BKH, prediction, batch.uniforms_BK),
            "p_S": self.choose(batch, hidden_BKH, prediction),
        }
        return {name: self.judge(batch, prediction, draw) for name, draw in drawn.items()}

    @torch.no_grad()
    def choose(self, batch: Batch, hidden_BKH: Tensor, prediction: Prediction) -> Draw:
        """Returns one of the candidates at each position; the first one is ELECTRA's draw.

        The discriminator runs without dropout here, which leaves the random state of training's dropout as it was.
        """
        choice_BK, *others = batch.more_uniforms(self.objective.candidates)
        silent, training = prediction._replace(entropy_BK=None), self.discriminator.training
        candidates, losses = [], []
        self.discriminator.eval()
        for uniforms_BK in (batch.uniforms_BK, *others):
            candidates.append(self.draw(hidden_BKH, silent, uniforms_BK))
            loss_BL = discriminator_loss(*self.discriminate(batch, candidates[-1].tokens_BK))
            losses.append(loss_BL.gather(1, batch.masked_positions_BK))
        self.discriminator.train(training)
        weights_BKC = torch.stack(losses, -1).clamp_(min=LEAST_POWERED_LOSS).pow_(self.objective.exponent)
        return resample(candidates, weights_BKC, prediction, choice_BK)
