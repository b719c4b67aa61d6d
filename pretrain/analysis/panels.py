"""The charts of a run's page: which metrics of the log each shows, and how to read it."""

from typing import NamedTuple

from pretrain.analysis.figures import NEUTRAL, ORIGINAL, REPLACED

PALETTE = (ORIGINAL, REPLACED, "#2e7d4f", "#7b4fa3", "#8a6d00", "#b0306a")
"""Colors of the metrics, or of the runs if there are several; more colors could not be told apart."""


class Curve(NamedTuple):
    """One metric of the log, and how to draw it."""

    path: str
    label: str
    color: str = PALETTE[0]
    dash: int = 0


class Panel(NamedTuple):
    """The definition of a chart: its title, axis and curves."""

    title: str
    unit: str
    note: str
    """How to read the chart."""
    curves: tuple[Curve, ...]
    logarithmic: bool = False
    compared: int = 1
    """Number of curves drawn if there are several runs."""
    over_tenths: bool = False
    """Draws the newest record's share in each tenth of [0, 1] instead of a number over the steps."""


PANELS = {
    "Learning": (
        Panel("Generator", "nats per masked position", "Lower is better.", (Curve("mlm_loss", "cross-entropy"),)),
        Panel(
            "Discriminator",
            "nats per position",
            "The dashed line is the loss of always predicting the share of replaced tokens.",
            (
                Curve("discriminator_loss", "L_D", REPLACED),
                Curve("discriminator_entropy", "entropy of the replaced share", NEUTRAL, 1),
            ),
            compared=2,
        ),
        Panel(
            "Detection",
            "area under the ROC curve",
            "0.5 is guessing; 1 is perfect separation of replaced and original tokens.",
            (Curve("auc_all", "all positions"), Curve("auc_masked", "masked positions", REPLACED, 1)),
        ),
        Panel(
            "Detection accuracy",
            "share judged correctly",
            "If few tokens are replaced, always answering “original” is right most of the time: look at the masked"
            " positions.",
            (
                Curve("accuracy_masked", "masked positions", REPLACED),
                Curve("accuracy_all", "all positions", ORIGINAL, 1),
            ),
        ),
        Panel(
            "Gradient norm",
            "before clipping",
            "Peaks that do not come down again mean that the learning rate is too high.",
            (Curve("gradient_norm", "gradient norm"),),
            logarithmic=True,
        ),
        Panel("Learning rate", "of the last update", "", (Curve("learning_rate", "learning rate"),)),
    ),
    "p_S against p_G": (
        Panel(
            "Confidence",
            "share of positions, by maximum probability",
            "By the probability of the most likely token at a masked position. p_G is the generator's distribution, p_S"
            " the one that replacements are drawn from.",
            (Curve("max_probability/p_G", "p_G"), Curve("max_probability/p_S", "p_S", REPLACED, 1)),
            compared=2,
            over_tenths=True,
        ),
        Panel(
            "Entropy",
            "nats per masked position",
            "",
            (Curve("entropy/p_G", "p_G"), Curve("entropy/p_S", "p_S", REPLACED, 1)),
            compared=2,
        ),
        Panel(
            "Ratio of p_G to p_S",
            "at the drawn tokens",
            "Percentiles. Ratios far from 1 mean that sampling has moved away from the generator's distribution.",
            tuple(
                Curve(f"ratio_p{percentile}", f"{percentile}%", PALETTE[number], number)
                for number, percentile in enumerate((99, 90, 50, 1))
            ),
            logarithmic=True,
        ),
        Panel(
            "Estimated and actual loss",
            "Pearson correlation",
            "How well the sampling head predicts the discriminator's loss, by the class of the drawn token. In the"
            " first few hundred steps both hardly vary, and even a correlation near 1 or -1 means little.",
            tuple(
                Curve(f"estimate_correlation/{name}", name, PALETTE[number], number)
                for number, name in enumerate(("all", "original", "replaced"))
            ),
        ),
        Panel(
            "Replaced",
            "share of masked positions",
            "Masked positions where the drawn token differs from the original.",
            (Curve("replace_rate", "replaced", REPLACED),),
        ),
    ),
    "Throughput": (
        Panel("Speed", "tokens per second", "", (Curve("tokens_per_second", "tokens per second"),)),
        Panel(
            "Share of the limit",
            "of the machine's matrix-product speed",
            "The limit is the speed of square matrix products, measured at the start on all ranks at once, in the run's"
            " precision.",
            (Curve("peak_share", "share of the limit"),),
        ),
        Panel(
            "Ranks",
            "own seconds per step",
            "A slowest rank far above the median holds up all others.",
            (
                Curve("slowest_rank_seconds", "slowest", REPLACED),
                Curve("median_rank_seconds", "median", PALETTE[0], 1),
            ),
        ),
    ),
}
