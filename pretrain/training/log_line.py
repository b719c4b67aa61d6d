"""The log line of a run: the key metrics in at most 120 characters; everything else is in `metrics.jsonl`."""

from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

WIDTH = 120
MOST_WAITING = 0.15
"""Tolerated wait for the slowest rank, as a share of its own time (data and forwards). If its backwards are as slow as
its forwards, this is also the share of a step that the others wait."""
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
"""The metrics shown, in this order, each only if the record has a non-zero value."""
FIRST_TO_GO = (
    *("learning_rate", "sampler_loss", "generator_loss", "gradient_norm", "tokens_per_second", "accuracy_masked"),
    *("discriminator_loss", "slowest_rank_seconds", "skipped"),
)
"""Metrics dropped from a line that would be too long, in this order."""
LEGEND = """\
log lines   L_G, L_S   losses of the generator and of the sampling head, per masked position
            L_D a/b    loss of the discriminator, per position / loss of always predicting the share of replaced tokens
            acc        the discriminator's accuracy at masked positions
            lr, grad   learning rate; gradient norm before clipping
            skipped    steps so far without an update, due to fp16 overflow; shown if there are any
            slowest    the slowest rank, shown if others wait for it 15% of its time: its own seconds / the median's
            all else   """
"""Explains the log lines; the caller appends the path of the records."""


def log_line(step: int, total_steps: int, values: Mapping[str, Any], ending: str) -> str:
    """Returns the log line of one record; `ending` is its last entry, such as the time left."""
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
