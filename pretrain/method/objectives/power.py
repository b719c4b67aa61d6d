"""HP_Loss with a dial: x' is drawn in proportion to p_G L_hat^b."""

from typing import Annotated, Literal

from pydantic import Field

from pretrain.method.objectives.hardness import HPLoss, SamplingHeadConfig

LEAST_POWERED_LOSS = 1e-6
"""Lower bound on a loss before it is raised to a power."""
Exponent = Annotated[float, Field(ge=-5, le=5)]
"""Beyond 5, powers of the least loss times p_G underflow in fp32."""


class HPLossPower(HPLoss):
    """HP_Loss with an exponent b on the estimated loss: 0 draws as ELECTRA, 1 as HP_Loss, 2 prefers hard tokens more,
    -1 prefers easy ones. The sampling head learns as in HP_Loss, whatever the exponent.
    """

    title = "ELECTRA with replacements sampled by a power of the estimated loss"

    class Config(SamplingHeadConfig):
        name: Literal["hp_loss_power"] = "hp_loss_power"
        exponent: Exponent = 1.0
        """Exponent b of the discriminator's loss, estimated (`hp_loss_power`) or true (`oracle`); 0 draws from p_G."""

    objective: Config

    least = LEAST_POWERED_LOSS

    @property
    def exponent(self) -> float:
        return self.objective.exponent
