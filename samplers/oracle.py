"""Sampling by the discriminator's true loss, measured rather than estimated: an upper bound for sampling heads.

Shape letters: B batch, C candidates, K masked positions per sequence, H hidden size.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.electra import ReplacementConfig, Sampler, SamplerLoss, no_loss
from pretrain.method.losses import discriminator_loss
from pretrain.method.objective import Cost
from pretrain.method.sampling import Draw, Prediction
from pretrain.model.distribution import Dense

LEAST_LOSS = 1e-6
"""Lower bound on a loss before it is raised to a power."""


GOLDEN = 0x9E3779B97F4A7C15
"""Increment of the state of splitmix64."""


class Oracle(Sampler):
    """Draws several candidates per position from p_G, and chooses one in proportion to its true loss to the power b.

    The discriminator reads one sequence per candidate, with the k-th candidate at every masked position. So a loss is
    measured with the k-th candidates at the other positions, whereas training sees the chosen ones: with several masked
    positions, x' follows p_G L_D^b only approximately, however many candidates. With one position, it tends
    to p_G L_D^b.
    """

    title = "ELECTRA with replacements resampled by the discriminator's true loss"

    class Config(ReplacementConfig):
        name: Literal["oracle"] = "oracle"
        candidates: int = Field(default=4, ge=1, le=1024)
        """Candidates per position; each costs a forward pass of the discriminator, a third of its training."""
        exponent: float = Field(default=1.0, ge=-5, le=5)
        """Exponent b of the true loss; beyond 5, powers of the least loss underflow in fp32."""

        @property
        def cost(self) -> Cost:
            return super().cost._replace(discriminator_forwards=self.candidates)

    objective: Config

    @torch.no_grad()
    def draw(self, batch: Batch, prediction: Prediction) -> tuple[Draw, SamplerLoss]:
        """Returns one of the candidates at each position; the first candidate is the token that ELECTRA would draw.

        The discriminator runs without dropout here, which leaves the random state of training's dropout as it was.
        """
        choice_BK, *others = more_uniforms(batch, self.objective.candidates)
        silent, training = prediction._replace(entropy_BK=None), self.discriminator.training
        candidates, losses = [], []
        self.discriminator.eval()
        for uniforms_BK in (batch.uniforms_BK, *others):
            candidate, _ = self.draw_from_p_G(batch._replace(uniforms_BK=uniforms_BK), silent)
            loss_BL = discriminator_loss(*self.discriminate(batch, candidate.tokens_BK))
            candidates.append(candidate)
            losses.append(loss_BL.gather(1, batch.masked_positions_BK))
        self.discriminator.train(training)
        weights_BKC = torch.stack(losses, -1).clamp_(min=LEAST_LOSS).pow_(self.objective.exponent)
        return resample(candidates, weights_BKC, choice_BK, prediction.entropy_BK is not None), no_loss


def more_uniforms(batch: Batch, number: int) -> list[Tensor]:
    """Returns `number` further random numbers per masked position, each [B, K] like `uniforms_BK` and independent.

    They are the first outputs of splitmix64, as in `ordering.mixed`, keyed by the position's two uniforms.
    The n-th does not depend on `number`.
    """
    key_BK = (batch.uniforms_BK * 2**24).long() << 24 | (batch.keep_uniforms_BK * 2**24).long()
    bits = [splitmix_(key_BK + signed(count * GOLDEN)) >> 41 & 2**23 - 1 for count in range(1, number + 1)]
    return [(bits_BK.float() + 0.5) * 2.0**-23 for bits_BK in bits]


def signed(value: int) -> int:
    """Returns the int64 with the low 64 bits of `value`."""
    return (value + 2**63) % 2**64 - 2**63


def splitmix_(z_X: Tensor) -> Tensor:
    """Hashes int64 numbers in place by the finalizer of splitmix64, as `ordering.mixed` does: int64's
    products wrap as uint64's do.
    """
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z_X = z_X.bitwise_xor_(z_X >> shift & 2 ** (64 - shift) - 1).mul_(signed(factor))  # a shift without sign
    return z_X.bitwise_xor_(z_X >> 31 & 2**33 - 1)


@torch.no_grad()
def resample(candidates: Sequence[Draw], weights_BKC: Tensor, uniforms_BK: Tensor, entropies: bool) -> Draw:
    """Chooses one candidate per position with probability proportional to its weight (sampling-importance-resampling).

    The candidates were drawn from q; as their number grows, the choice follows q times the weight, normalized. The mean
    weight of the candidates estimates the normalizer. So log-probabilities are estimates, and so are their maximum,
    taken over the candidates, and the entropy.
    """
    q = Dense(weights_BKC)
    choice_BK1, total_BK1 = q.draw(uniforms_BK)[0][..., None], q.total_X[..., None]
    tokens_BKC, log_p_G_BKC, log_q_BKC = (
        torch.stack(parts, -1)
        for parts in zip(*((one.tokens_BK, one.log_p_G_BK, one.log_q_BK) for one in candidates), strict=True)
    )
    log_q_BKC = log_q_BKC + weights_BKC.log() - (total_BK1 / len(candidates)).log()
    likely_BKC = log_q_BKC.clamp(max=0)  # an estimate may exceed 1
    return candidates[0]._replace(
        tokens_BK=tokens_BKC.gather(-1, choice_BK1).squeeze(-1),
        log_p_G_BK=log_p_G_BKC.gather(-1, choice_BK1).squeeze(-1),
        log_q_BK=log_q_BKC.gather(-1, choice_BK1).squeeze(-1),
        log_max_q_BK=likely_BKC.amax(-1),
        entropy_q_BK=-(weights_BKC / total_BK1 * likely_BKC).sum(-1) if entropies else None,
    )
