"""HP_Loss with an exponent b: x' is drawn in proportion to p_G L_hat^b, where L_hat is the estimated loss."""

from typing import Literal

from pydantic import Field

from pretrain.method.hardness_prediction import HPLoss, SamplingHeadConfig


class HPLossPower(HPLoss):
    """HP_Loss with an exponent b on the estimated loss: 0 draws as ELECTRA, 1 as HP_Loss, 2 prefers hard tokens more,
    -1 prefers easy ones. The sampling head learns as in HP_Loss, with any exponent.
    """

    title = "ELECTRA with replacements sampled by a power of the estimated loss"

    class Config(SamplingHeadConfig):
        name: Literal["hp_loss_power"] = "hp_loss_power"
        exponent: float = Field(default=1.0, ge=-5, le=5)
        """Exponent b of the estimated loss; beyond 5, powers of the least loss times p_G underflow in fp32."""

    objective: Config
    least_loss = 1e-6

    @property
    def exponent(self) -> float:
        return self.objective.exponent
