"""Fast-ELECTRA (Dong et al. 2023): a trained, frozen generator, and a sampling temperature that falls during the run.

Shape letters: B batch, K masked positions per sequence, H hidden size.
"""

import math
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra, ReplacementConfig
from pretrain.method.losses import Gamma
from pretrain.method.sampling import Draw, Prediction, draw_from, tempered
from pretrain.model.config import ModelConfig


class FastElectra(Electra):
    """ELECTRA with the generator of `--generator_from`: it runs without dropout and is not trained; L_D is the only
    loss. x' is drawn from softmax(z / T(u)) at progress u, with T(u) = T + (T0 - T) exp(-u / tau) and T = 1.

    The discriminator's embeddings are its own: fresh at the start (`nes`, our choice), or the generator's plus Delta
    (`gdes`).
    """

    title = "ELECTRA with a frozen generator and a falling temperature (Fast-ELECTRA)"
    sampling_passes = 0
    frozen_generator = True
    uses_progress = True
    discriminator_prefix = None  # it trains nothing else
    generator_weight = 0.0

    class Config(ReplacementConfig):
        name: Literal["fast_electra"] = "fast_electra"
        gamma: Gamma = 0.0
        """Exponent of the focal loss: 0 to 100, or `piecewise` (paper, best: 1); 0 is cross-entropy."""
        start_temperature: float = Field(default=2.0, gt=0)
        """Temperature T0 of the first step, which falls towards `temperature` (2: not checked against the paper)."""
        decay: float = Field(default=0.1, gt=0)
        """Share of the run, tau, in which the excess temperature falls to 1/e (0.1: not checked either)."""

        @field_validator("gamma")
        @classmethod
        def _has_no_generator_loss(cls, gamma: Gamma) -> Gamma:
            if gamma != 0:
                raise ValueError(f"got {gamma}, expected 0: the generator is frozen and has no loss; leave it out")
            return gamma

        @property
        def streams(self) -> bool:
            return False

    objective: Config

    def __init__(self, model: ModelConfig, objective: Any, vocab_size: int, special_mask_id: int) -> None:
        super().__init__(model, objective, vocab_size, special_mask_id)
        for part in (self.generator, self.generator_predictions, self.generator_lm_head):
            part.requires_grad_(False)

    def train(self, mode: bool = True) -> "FastElectra":
        super().train(mode)
        self.generator.eval()
        return self

    @torch.no_grad()
    def generate(self, batch: Batch, entropies: bool = False) -> tuple[Tensor, Prediction]:
        return super().generate(batch, entropies)

    def draw(self, hidden_BKH: Tensor, prediction: Prediction, uniforms_BK: Tensor, from_p_G: bool = False) -> Draw:
        last, first = self.objective.temperature, self.objective.start_temperature
        temperature = last + (first - last) * math.exp(-self.progress / self.objective.decay)  # T(u)
        weights_BKV = tempered(prediction.p_BKV, temperature)
        return draw_from(weights_BKV, prediction, uniforms_BK, self.objective.forbid_original)
