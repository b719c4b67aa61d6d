"""What the charts of a page show: the quantities of the log, and how each is read."""

from typing import NamedTuple

from pretrain.analysis.figures import NEUTRAL, ORIGINAL, REPLACED

PALETTE = (ORIGINAL, REPLACED, "#2e7d4f", "#7b4fa3", "#8a6d00", "#b0306a")
"""Of quantities, or of runs where there are several: more colours are not told apart."""


class Curve(NamedTuple):
    """One quantity of the log."""

    path: str
    label: str
    color: str = PALETTE[0]
    dash: int = 0


class Panel(NamedTuple):
    """A chart."""

    title: str
    unit: str
    note: str
    """How it is read."""
    curves: tuple[Curve, ...]
    logarithmic: bool = False
    compared: int = 1
    """So many of the curves are drawn where there are several runs."""
    over_tenths: bool = False
    """Drawn is the newest record's share in each tenth, rather than a number over the steps."""


PANELS = {
    "Learning": (
        Panel("Generator", "nats a masked position", "Lower is better.", (Curve("mlm_loss", "cross-entropy"),)),
        Panel(
            "Discriminator",
            "nats a position",
            "A discriminator that knows the share of replaced tokens and nothing else has a loss of the dashed line.",
            (
                Curve("discriminator_loss", "L_D", REPLACED),
                Curve("discriminator_entropy", "entropy of the replaced share", NEUTRAL, 1),
            ),
            compared=2,
        ),
        Panel(
            "Detection",
            "area under the ROC curve",
            "0.5 is guessing, 1 is every replaced token found.",
            (Curve("auc_all", "all positions"), Curve("auc_masked", "masked positions", REPLACED, 1)),
        ),
        Panel(
            "Detection accuracy",
            "share judged rightly",
            "Where few tokens are replaced, saying “original” everywhere is right most of the time: look at the"
            " masked positions.",
            (
                Curve("accuracy_masked", "masked positions", REPLACED),
                Curve("accuracy_all", "all positions", ORIGINAL, 1),
            ),
        ),
        Panel(
            "Gradient norm",
            "before clipping",
            "Peaks that do not come down again say that the learning rate is too high.",
            (Curve("gradient_norm", "gradient norm"),),
            logarithmic=True,
        ),
        Panel("Learning rate", "of the last update", "", (Curve("learning_rate", "learning rate"),)),
    ),
    "p_S against p_G": (
        Panel(
            "How sure each is",
            "share of positions, by the likeliest token",
            "By the probability of the likeliest token at a masked position. p_G is the generator's distribution, p_S"
            " the one that replacements are drawn from.",
            (Curve("max_probability/p_G", "p_G"), Curve("max_probability/p_S", "p_S", REPLACED, 1)),
            compared=2,
            over_tenths=True,
        ),
        Panel(
            "Entropy",
            "nats a masked position",
            "",
            (Curve("entropy/p_G", "p_G"), Curve("entropy/p_S", "p_S", REPLACED, 1)),
            compared=2,
        ),
        Panel(
            "Ratio of p_G to p_S",
            "at the drawn tokens",
            "Far from 1, sampling has left the generator's distribution; percentiles.",
            tuple(
                Curve(f"ratio_p{percentile}", f"{percentile}%", PALETTE[number], number)
                for number, percentile in enumerate((99, 90, 50, 1))
            ),
            logarithmic=True,
        ),
        Panel(
            "Estimated and actual loss",
            "Pearson correlation",
            "What the sampling head knows of the discriminator's loss, by what was drawn.",
            tuple(
                Curve(f"estimate_correlation/{name}", name, PALETTE[number], number)
                for number, name in enumerate(("all", "original", "replaced"))
            ),
        ),
        Panel(
            "Replaced",
            "share of masked positions",
            "Draws that are another token than the original.",
            (Curve("replace_rate", "replaced", REPLACED),),
        ),
    ),
    "Throughput": (
        Panel("Speed", "tokens a second", "", (Curve("tokens_per_second", "tokens a second"),)),
        Panel(
            "Share of the limit",
            "of the machine's matrix products",
            "The limit is what square products reached at the start, in the run's precision, on all ranks at once.",
            (Curve("peak_share", "share of the limit"),),
        ),
        Panel(
            "Ranks",
            "own seconds a step",
            "A slowest rank far above the median holds up all others.",
            (
                Curve("slowest_rank_seconds", "slowest", REPLACED),
                Curve("median_rank_seconds", "median", PALETTE[0], 1),
            ),
        ),
    ),
}
