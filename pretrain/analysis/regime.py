"""The regime of a run: whether its generator is sure enough of the originals for samplers to differ.

In the paper's runs p_G often draws the original, which learned sampling avoids. Near unigrams it hardly ever does.
"""

import math

import numpy as np

LEAST_ORIGINALS = 0.2
"""Share of originals among the draws, below which samplers cannot be told apart. Of p_G: .045 in our studies of
`tiny` (docs/evidence/results.md), about .6 by ELECTRA's author (ymcui/Chinese-ELECTRA #19)."""


def unigram_entropy(counts_V: np.ndarray) -> float:
    """Returns the entropy in nats of word pieces that occur this often: the MLM loss of predicting frequencies."""
    shares = counts_V[counts_V > 0] / counts_V.sum()
    return float(-(shares * np.log(shares)).sum())


def regime(originals: float, sure: float, below_unigrams: float, replaced: float) -> str:
    """Describes a regime beside the paper's: the share of draws that are originals, of p_G's maxima above .9, the nats
    of the MLM loss below the unigram entropy, and the share of all tokens replaced; NaN for what is unknown.
    """
    side = "below" if below_unigrams > 0 else "above"
    known = {
        f"{originals:.1%} of the draws are originals (ELECTRA's authors: about 60%)": originals,
        f"{sure:.1%} of p_G's maxima are above .9": sure,
        f"the MLM loss is {abs(below_unigrams):.2f} nats {side} the unigram entropy": below_unigrams,
        f"{replaced:.1%} of all tokens are replaced (about 7%)": replaced,
    }
    near = "; generator still near unigrams: samplers cannot differ yet" if originals < LEAST_ORIGINALS else ""
    return ", ".join(part for part, value in known.items() if not math.isnan(value)) + near
