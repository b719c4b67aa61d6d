"""Score models on BLiMP's minimal pairs (Warstadt et al., TACL 2020) without fine-tuning.

    python finetune/blimp.py exported/base
    python finetune/blimp.py exported/base runs/base --score discriminator generator likelihood
    python finetune/blimp.py google/electra-base-discriminator --generator google/electra-base-generator \
        --score likelihood --mask_share 0.1275

A model is right about a pair if it scores the acceptable sentence higher; ties count half. A sentence's score is a sum
over its tokens: of the discriminator's log P(original); of the generator's, or another masked language model's,
log P(token | the others), each token masked in turn (Salazar et al., ACL 2020); or of the likelihood that both imply.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from electra_sampler.foundation.command_line import POSITIONAL, Metavar, run_script
from electra_sampler.foundation.config import StrictConfig


class BlimpOptions(StrictConfig):
    """The command line of `blimp.py`."""

    models: Annotated[tuple[str, ...], POSITIONAL, Field(min_length=1)]
    """runs, exported folders, or names of stock Hugging Face models"""
    data: Path = Path("data/blimp")
    """folder of BLiMP's .jsonl files, or of BLiMP.zip"""
    score: Annotated[tuple[Literal["discriminator", "generator", "likelihood"], ...], Metavar("KIND")] = (
        "discriminator",
        "generator",
    )
    """scores: discriminator, generator, likelihood; the first takes a fraction of the others' time"""
    generator: str | None = None
    """generator of the models, if not inside their folder"""
    mask_share: float | None = Field(default=None, gt=0, lt=1)
    """share of tokens masked in training, for --score likelihood of models that do not record it"""
    random_weights: bool = False
    """score each model with untrained weights too"""
    output: Path = Path("runs/blimp")
    """folder of blimp.md and blimp.json"""


def main(options: BlimpOptions) -> None:
    from finetune.minimal_pairs import evaluate

    print(evaluate(**dict(options)))


if __name__ == "__main__":
    run_script(main)
