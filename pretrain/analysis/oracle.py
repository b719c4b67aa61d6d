"""Distance of a sampling distribution from the oracle's, which weights p_G by the discriminator's true loss.

At one masked position, with the tokens drawn at the others, the oracle draws x' in proportion to p_G(x') L_D(x'), so

    KL(q || oracle) = E_q[log(q / p_G) - log L_D] + log E_{p_G}[L_D]

in nats. One position per sequence is taken, chosen independently of the draws. The expectations under p_G are means
over quantiles of p_G; that under a learned q is the drawn token's value, so only its mean over sequences is meaningful.

Shape letters: B batch, K masked positions per sequence, C candidates, S sequences.
"""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import torch

from foundation.stats import Resampled, mean, resample
from pretrain.data.batches import Batch
from pretrain.method.electra import Detection
from pretrain.method.losses import discriminator_loss

CANDIDATES = 16
"""Quantiles of p_G, each one more forward of the discriminator."""
LEAST_LOSS = 1e-6


@torch.no_grad()
def oracle_distance(
    model: Detection, batches: Iterable[Batch], device: torch.device, candidates: int = CANDIDATES
) -> dict[str, Resampled]:
    """Returns the distance by distribution: p_G, and p_S if the objective learns one; the other masked positions hold
    the tokens of the objective's own distribution.
    """
    model.eval()
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for batch in batches:
        batch = batch.to(device)
        *_, (name, output) = model.outputs(batch).items()
        slot_B1 = batch.keep_uniforms_BK.masked_fill(~batch.masked_valid_BK, -1).argmax(1, keepdim=True)
        place_B1 = batch.masked_positions_BK.gather(1, slot_B1)
        prediction = model.predict(batch)
        losses = []
        for number in range(candidates):
            quantile_BK = torch.full_like(batch.uniforms_BK, (number + 0.5) / candidates)
            token_B1 = prediction.p.draw(quantile_BK)[0].gather(1, slot_B1)
            tokens_BK = output.draw.tokens_BK.scatter(1, slot_B1, token_B1)
            losses.append(discriminator_loss(*model.discriminate(batch, tokens_BK)).gather(1, place_B1))
        loss_BC = torch.cat(losses, 1).double().clamp_(min=LEAST_LOSS)
        log_mean_B = loss_BC.mean(1).log()
        parts["p_G"].append((log_mean_B - loss_BC.log().mean(1)).cpu().numpy())
        if name != "p_G":
            drawn_B = output.discriminator_loss_BL.gather(1, place_B1)[:, 0].double().clamp(min=LEAST_LOSS)
            log_ratio_B = output.draw.log_ratio_BK.gather(1, slot_B1)[:, 0]
            parts[name].append((log_mean_B - drawn_B.log() - log_ratio_B).cpu().numpy())
    return {
        name: resample(np.stack((np.concatenate(part), np.ones(sum(map(len, part))))), mean)
        for name, part in parts.items()
    }
