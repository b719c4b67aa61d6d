"""Score models on BLiMP's minimal pairs (Warstadt et al., TACL 2020) without fine-tuning.

    python finetune/blimp.py exported/base
    python finetune/blimp.py exported/base google/electra-base-generator --random_weights

A model is right about a pair if it scores the acceptable sentence higher; ties count half. A discriminator's score is
the sum of log P(original) over the tokens; a generator's or masked language model's is the sum of log P(token | the
others), each token masked in turn (Salazar et al., ACL 2020). An exported folder is scored with its generator.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from foundation.command_line import POSITIONAL, run_script
from foundation.config import StrictConfig


class BlimpOptions(StrictConfig):
    """The command line of `blimp.py`."""

    models: Annotated[tuple[str, ...], POSITIONAL, Field(min_length=1)]
    """exported folders, or hub names of stock Hugging Face ELECTRA"""
    data: Path = Path("data/blimp")
    """folder of BLiMP's .jsonl files, or of BLiMP.zip"""
    discriminator_only: bool = False
    """leave out an export's generator, which takes several times as long"""
    random_weights: bool = False
    """score each model with untrained weights too"""
    output: Path = Path("runs/blimp")
    """folder of blimp.md and blimp.json"""


def main(options: BlimpOptions) -> None:
    from finetune.minimal_pairs import evaluate

    print(evaluate(**dict(options)))


if __name__ == "__main__":
    run_script(main)
