"""ELECTRA itself, the baseline: replacements from the generator's own distribution, and nothing learned about them."""

from typing import Literal

from pretrain.method.electra import Electra, ReplacementConfig


class PlainElectra(Electra):
    """x' from p_G."""

    title = "ELECTRA"
    sampling_passes = 0

    class Config(ReplacementConfig):
        name: Literal["electra"] = "electra"
