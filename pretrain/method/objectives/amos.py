"""AMOS (Meng et al. 2022): MLM heads at several depths of the generator, mixed by weights that learn to make the
discriminator's loss larger.

As in microsoft/AMOS, one MLM head serves all depths, and no gradient crosses from one depth to the layers below it.
There the mixing weights' gradient also reaches the generator; here, only w. Their generator has no dropout.

Shape letters: B batch, L length, K masked positions per sequence, H hidden size, E embedding size, V vocabulary,
N depths, X any leading dimensions.
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pretrain.data.batches import GOLDEN, Batch, signed, splitmix_
from pretrain.method.electra import Electra, ReplacementConfig, masked_states
from pretrain.method.losses import Gamma, focal_loss
from pretrain.method.sampling import Draw, Prediction, entropy, largest, log_at, log_probability, predict
from pretrain.model import ops
from pretrain.model.config import ModelConfig
from pretrain.model.encoder import initialize_matrix
from pretrain.model.heads import full_precision

LEAST = 2.0**-24
"""Distance from 1 that fp32 still represents."""


class Amos(Electra):
    """ELECTRA with x' drawn from softmax(s), s = sum_k pi_k z_k over the scores z_k of the MLM head at N depths, with
    pi = softmax_k(w·h_k). Each depth has its own L_G; the last one's is reported as L_G, the others' sum as L_S.

    x' = argmax(s + g) with Gumbel noise g; in the backward, x' is softmax((s + g) / tau), and the reversed gradient
    reaches only w. A micro-batch holds N + 3 tensors [B, K, V].
    """

    title = "ELECTRA with an adversarial mixture of generators (AMOS)"
    sampling_passes = 0
    sampler_weight = 1.0

    class Config(ReplacementConfig):
        name: Literal["amos"] = "amos"
        gamma: Gamma = 0.0
        """Exponent of the focal loss: 0 to 100, or `piecewise` (paper, best: 1); 0 is cross-entropy."""
        heads: int = Field(default=3, ge=1, le=64)
        """Depths of the generator with an MLM head: evenly spaced layers with the last one, at most all (AMOS: 3)."""
        tau: float = Field(default=0.3, gt=0)
        """Temperature of the Gumbel softmax in the backward (AMOS: 0.3)."""

        def extra_passes(self, layers: int) -> int:
            depths = min(self.heads, layers)
            return 3 * (depths - 1) + depths  # the other heads, and `reversed_offset`

        def score_tensors(self, layers: int) -> int:
            return min(self.heads, layers) + 3

        @property
        def streams(self) -> bool:
            return False

    objective: Config

    def __init__(self, model: ModelConfig, objective: Any, vocab_size: int, special_mask_id: int) -> None:
        super().__init__(model, objective, vocab_size, special_mask_id)
        config = self.generator.config
        depths = min(self.objective.heads, config.num_hidden_layers)
        self.states_at = tuple(config.num_hidden_layers * (number + 1) // depths for number in range(depths))
        self.sampler_mixture = ops.Linear(config.hidden_size, 1, bias=False)
        initialize_matrix(self.sampler_mixture, config.initializer_range)

    def scores(self, hidden_XH: Tensor) -> Tensor:
        """Returns the MLM head's scores z [X, V]."""
        words = self.generator.embeddings.word_embeddings
        return self.generator_lm_head(self.generator_predictions(hidden_XH), words)

    def generate(self, batch: Batch, entropies: bool = False) -> tuple[Tensor, Prediction]:
        """Returns the hidden states at the masked positions, of every depth [N, B, K, H], and the last's prediction."""
        keep = self.objective.mask_keep_fraction
        hidden_NBKH = masked_states(self.generator, batch, self.special_mask_id, keep, self.states_at)
        return hidden_NBKH, predict(batch, self.scores(hidden_NBKH[-1]), entropies)

    def draws(self, hidden_BKH: Tensor, prediction: Prediction, uniforms_BK: Tensor) -> dict[str, Draw]:
        return {
            "p_G": self.draw(hidden_BKH, prediction, uniforms_BK, from_p_G=True),
            "p_S": self.draw(hidden_BKH, prediction, uniforms_BK),
        }

    def draw(self, hidden_BKH: Tensor, prediction: Prediction, uniforms_BK: Tensor, from_p_G: bool = False) -> Draw:
        """Draws x' from the mixture; `head_BK` is the L_G of all depths but the last. `hidden` is [N, B, K, H]."""
        loss_BK, log_ps_BKV = torch.zeros_like(prediction.log_p_original_BK), []
        for hidden_XH in hidden_BKH[:-1]:
            z_BKV = self.scores(hidden_XH)
            p_BKV = z_BKV.detach().softmax(-1)
            log_p_BK = log_probability(z_BKV, p_BKV, prediction.original_BK)
            loss_BK = loss_BK + focal_loss(log_p_BK, self.objective.gamma)
            log_ps_BKV.append(z_BKV.detach().log_softmax(-1))
        if from_p_G:
            drawn = super().draw(hidden_BKH, prediction, uniforms_BK, from_p_G)
            return drawn._replace(head_BK=loss_BK)
        log_ps_BKV.append(prediction.p_BKV.clamp(min=torch.finfo(prediction.p_BKV.dtype).tiny).log())
        pi_BKN = full_precision(self.sampler_mixture(hidden_BKH.detach())).squeeze(-1).movedim(0, -1).softmax(-1)
        mixed = zip(pi_BKN.detach().unbind(-1), log_ps_BKV, strict=True)
        s_BKV = sum((pi_BK[..., None] * log_p_BKV for pi_BK, log_p_BKV in mixed), torch.zeros(()))
        s_BKV = s_BKV / self.objective.temperature
        if self.objective.forbid_original:
            s_BKV = s_BKV.scatter(-1, prediction.original_BK[..., None], -torch.inf)
        noisy_BKV = s_BKV + gumbel(uniforms_BK, s_BKV.shape[-1])
        q_BKV, tokens_BK = s_BKV.softmax(-1), largest(noisy_BKV)
        y_BKV = noisy_BKV.div_(self.objective.tau).softmax(-1)
        return Draw(
            tokens_BK=tokens_BK,
            log_p_G_BK=log_at(prediction.p_BKV, tokens_BK),
            log_q_BK=log_at(q_BKV, tokens_BK),
            log_max_p_G_BK=log_at(prediction.p_BKV, prediction.top_BK),
            log_max_q_BK=q_BKV.amax(-1).log(),
            entropy_p_G_BK=prediction.entropy_BK,
            entropy_q_BK=None if prediction.entropy_BK is None else entropy(q_BKV),
            head_BK=loss_BK,
            offset_BKE=self.reversed_offset(pi_BKN, log_ps_BKV, y_BKV) if torch.is_grad_enabled() else None,
        )

    def reversed_offset(self, pi_BKN: Tensor, log_ps_BKV: list[Tensor], y_BKV: Tensor) -> Tensor:
        """Returns an offset [B, K, E] to the embeddings of x': 0, with the gradient of GradMultiply(y, -1) E_D with
        respect to pi.

        With dy/ds = (diag(y) - y y^T) / tau, the derivative of y E_D with respect to pi_k is the sum over tokens of
        y (z_k - <z_k>_y) / tau, times E_D; no tensor [B, K, V] is kept for the backward.
        """
        offset_BKE = torch.zeros(())
        scale = self.objective.tau * self.objective.temperature
        for pi_BK, log_p_BKV in zip(pi_BKN.unbind(-1), log_ps_BKV, strict=True):
            with torch.no_grad():
                centered_BKV = log_p_BKV - (y_BKV * log_p_BKV).sum(-1, keepdim=True)
                slope_BKV = centered_BKV.mul_(y_BKV).div_(scale)
                slope_BKE = full_precision(self.discriminator.embeddings.mix_words(slope_BKV))
            offset_BKE = offset_BKE + (pi_BK.detach() - pi_BK)[..., None] * slope_BKE
        return offset_BKE

    def sampler_loss(self, drawn: Draw, d_BK: Tensor, loss_D_BK: Tensor) -> Tensor:
        assert drawn.head_BK is not None
        return drawn.head_BK


@torch.no_grad()
def gumbel(uniforms_X: Tensor, vocab_size: int) -> Tensor:
    """Returns standard Gumbel noise [X, V], keyed by the position's uniform and the token.

    The uniform's 24 bits and the token's id are hashed by splitmix64. Of the result, 53 bits make a uniform U in
    (0, 1); the noise is -log(-log(1 - U)), which resolves large values, since they come from small U.
    """
    key_X1 = (uniforms_X.double() * 2**24).long()[..., None] * signed(0xD1B54A32D192ED03)
    token_V = torch.arange(vocab_size, device=uniforms_X.device) + 1
    z_XV = splitmix_(token_V * signed(GOLDEN) + key_X1)
    u_XV = ((z_XV >> 11) & (2**53 - 1)).to(uniforms_X.dtype).add_(0.5).mul_(2.0**-53).clamp_(max=1 - LEAST)
    return u_XV.neg_().log1p_().neg_().log_().neg_()
