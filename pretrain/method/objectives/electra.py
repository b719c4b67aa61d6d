"""The ELECTRA baseline: replacements are drawn from the generator's own distribution, without a sampling head."""

from typing import Literal

from pretrain.method.electra import Electra, ReplacementConfig


class PlainElectra(Electra):
    """ELECTRA: x' is drawn from p_G."""

    title = "ELECTRA"
    sampling_passes = 0

    class Config(ReplacementConfig):
        name: Literal["electra"] = "electra"
