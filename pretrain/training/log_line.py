"""The log line of a run: what a person watches, in at most 120 characters; all else is in `metrics.jsonl`."""

from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

WIDTH = 120
MOST_WAITING = 0.15
"""Share of a step for which the others wait, where the slowest rank's backwards are as slow as its forwards."""
SHOWN = {
    "generator_loss": "L_G {generator_loss}",
    "sampler_loss": "L_S {sampler_loss}",
    "discriminator_loss": "L_D {discriminator_loss}/{discriminator_entropy}",
    "accuracy_masked": "acc {accuracy_masked}",
    "learning_rate": "lr {learning_rate}",
    "gradient_norm": "grad {gradient_norm}",
    "tokens_per_second": "{tokens_per_second} tok/s",
    "skipped": "skipped {skipped}",
    "slowest_rank_seconds": "slowest rank {slowest_rank} {slowest_rank_seconds}/{median_rank_seconds} s",
}
"""What is shown, in this order, where there is any."""
FIRST_TO_GO = (
    *("learning_rate", "sampler_loss", "generator_loss", "gradient_norm", "tokens_per_second", "accuracy_masked"),
    *("discriminator_loss", "slowest_rank_seconds", "skipped"),
)
"""What is left out, in this order, of a line that would be too long."""
LEGEND = """\
log lines   L_G, L_S   losses of the generator and of the sampling head, a masked position
            L_D a/b    loss of the discriminator, a position / if it knew the share of replaced tokens alone
            acc        share of the masked positions that the discriminator judges rightly
            lr, grad   learning rate; norm of the gradient before clipping
            skipped    steps so far without an update, by fp16 overflow; shown where there are any
            slowest    the rank that others wait for, where they do for 15% of a step: its own seconds / the median's
            all else   """
"""The file with the records follows."""


def log_line(step: int, total_steps: int, values: Mapping[str, Any], ending: str) -> str:
    """The line of one record."""
    texts = {name: str(value) for name, value in values.items()}
    for name, value in values.items():
        if isinstance(value, float):
            texts[name] = f"{value:.3f}" if 1e-2 <= abs(value) < 1e3 else f"{value:.1e}".replace("e-0", "e-")
    texts["tokens_per_second"] = tqdm.format_sizeof(values.get("tokens_per_second", 0))
    shown = {name: template.format_map(texts) for name, template in SHOWN.items() if values.get(name)}
    if values.get("median_rank_seconds", 0) >= (1 - MOST_WAITING) * values.get("slowest_rank_seconds", 0):
        shown.pop("slowest_rank_seconds", None)
    waiting_to_go = iter(FIRST_TO_GO)
    while len(line := "  ".join((f"step {step}/{total_steps}", *shown.values(), ending))) > WIDTH:
        shown.pop(next(waiting_to_go), None)
    return line
