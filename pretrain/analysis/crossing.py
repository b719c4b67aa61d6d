"""Crosses runs: each run's discriminator judges the replacements drawn by each run's sampler, at the same masked
positions with the same random numbers (paper, appendix: each discriminator under p_G and under p_S).

`crossing.json`:

    {"sequences": 4096,
     "entries": [{"discriminator": RUN, "sampler": RUN, "distribution": "p_G" or "p_S", "step": 1000,
                  "accuracy_masked": [value, low, high], "accuracy_all": [...], "auc_all": [...], "auc_masked": [...],
                  "discriminator_loss": [...], "loss_over_entropy": [...], "replaced_share": [...],
                  "discriminator_entropy": value}],
     "differences": [{"discriminator": A, "minus": B, "sampler": RUN, "distribution": ..., "step": ...,
                      "accuracy_masked": [difference, low, high], ...}],
     "paper": {"p_G": {"accuracy_masked": ..., "accuracy_all": ...}, "p_S": ...}}

`crossing.npz` holds `sums` [entries, columns, sequences]: `sequence_sums` of each entry, in order.

RUN is a run folder as given, `step` the sampler's step. A run without a sampling head has no p_S: it samples from p_G.
`auc_all` is over all positions, as are the losses; `auc_masked` is over masked positions. In a difference, A comes
after B in the order of the runs, both judge the same replacements, and the interval is from the paired bootstrap over
sequences.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from electra_sampler.foundation.markdown_table import markdown_table
from electra_sampler.foundation.stats import ResampledStatistic
from pretrain.analysis.analysis import PAPER, as_json, detection, sequence_sums
from pretrain.analysis.observation import judge
from pretrain.data.batches import Batch
from pretrain.engine.checkpoint import Checkpoint
from pretrain.method.electra import Detection
from pretrain.runs.folder import RunDescription
from pretrain.runs.models import load_checkpoint

COMPARED = (
    "accuracy_masked",
    "accuracy_all",
    "auc_all",
    "auc_masked",
    "discriminator_loss",
    "loss_over_entropy",
)
"""Metrics whose differences are reported; the other metrics depend only on the replacements."""

SHOWN = {"accuracy_masked": "masked", "accuracy_all": "all", "auc_all": "AUC", "discriminator_loss": "L_D"}
HEAD = ("discriminator", "replacements", "step", *SHOWN.values())


class Candidate(NamedTuple):
    """A checkpoint of a run, with the results of its own evaluation."""

    run: str
    description: RunDescription
    checkpoint: Checkpoint
    result: dict[str, Any]
    """The content of `metrics.json`."""
    tokens: dict[str, Tensor]
    """The replacements that it draws [S, K], by sampling distribution; empty if the run has no discriminator."""
    detection: dict[str, dict[str, ResampledStatistic]]
    """Detection metrics of its own discriminator on these replacements, by sampling distribution."""
    sums: dict[str, np.ndarray]
    """`sequence_sums` of its own discriminator on these replacements, by sampling distribution."""


class Entry(NamedTuple):
    """Detection metrics of one discriminator on one sampler's replacements."""

    discriminator: str
    sampler: str
    distribution: str
    step: int
    """Step of the sampler's checkpoint."""
    found: dict[str, ResampledStatistic]
    sums_CS: np.ndarray

    @property
    def replacements(self) -> dict[str, Any]:
        """Sampler, distribution and step, which identify the replacements that the discriminator judged."""
        return {"sampler": self.sampler, "distribution": self.distribution, "step": self.step}


def cross(
    candidates: Sequence[Candidate], read: Callable[[], Iterable[Batch]], device: torch.device
) -> Iterator[Entry]:
    """Yields the detection metrics of every discriminator on every sampler's replacements.

    Only one model is in memory at a time, and only sums and resamples of the results are kept.
    """
    for judging in candidates:
        found = {judging.run: (judging.detection, judging.sums)}
        if others := [part for part in candidates if part is not judging]:
            model = load_checkpoint(judging.description, judging.checkpoint)
            assert isinstance(model, Detection)
            model.to(device)
            for other in others:
                answers = {name: judge(model, read(), tokens, device) for name, tokens in other.tokens.items()}
                found[other.run] = (
                    {name: detection(judgment) for name, judgment in answers.items()},
                    {name: sequence_sums(judgment) for name, judgment in answers.items()},
                )
        for drawing in candidates:
            estimates, sums = found[drawing.run]
            for name in estimates:
                yield Entry(judging.run, drawing.run, name, drawing.checkpoint.step, estimates[name], sums[name])


def crossing(entries: Sequence[Entry], sequences: int) -> dict[str, Any]:
    """Returns the content of `crossing.json`: all entries, and differences of discriminators on equal replacements."""
    return {
        "sequences": sequences,
        "entries": [
            {"discriminator": entry.discriminator, **entry.replacements}
            | as_json(entry.found)
            | {"discriminator_entropy": entry.found["discriminator_entropy"].value}
            for entry in entries
        ],
        "differences": [
            {"discriminator": a.discriminator, "minus": b.discriminator, **a.replacements}
            | {name: a.found[name].minus(b.found[name]).interval() for name in COMPARED}
            for b, a in combinations(entries, 2)
            if a.replacements == b.replacements
        ],
        "paper": PAPER["detection"],
    }


def tables(crossed: dict[str, Any]) -> str:
    """Returns Markdown tables: each discriminator on each sampler's replacements; differences from the first one."""
    entries, differences = crossed["entries"], crossed["differences"]
    first = entries[0]["discriminator"]
    rows = [[*_row(entry), f"{entry['discriminator_entropy']:.4f}"] for entry in entries]
    against = [_row(part, sign="+") for part in differences if part["minus"] == first]
    lines = markdown_table([*HEAD, "entropy"], rows)
    if against:
        lines += ["", f"minus {first}:", "", *markdown_table(HEAD, against)]
    return "\n".join(lines)


def _row(part: dict[str, Any], sign: str = "") -> list[str]:
    source = f"{part['distribution']} of {part['sampler']}"
    texts = [
        "{} ({} to {})".format(*(f"{number:{sign}.4f}" for number in part[name])) if part[name] else "-"
        for name in SHOWN
    ]
    return [part["discriminator"], source, str(part["step"]), *texts]
