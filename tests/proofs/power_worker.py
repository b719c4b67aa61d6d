"""The pre-training commands with one additional objective: a class, and a line in the registry.

python -m tests.proofs.power_worker run|evaluate|export ARGUMENTS ...
"""

import sys
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from foundation.command_line import run_command
from pretrain.method.objectives import OBJECTIVES
from pretrain.method.objectives.hardness import HPLoss, SamplingHeadConfig
from pretrain.method.sampling import Prediction, hp_loss_weights


class Power(HPLoss):
    """Draws x' in proportion to p_G L_hat^b; b = 1 is HP_Loss."""

    title = "ELECTRA with replacements sampled by a power of the estimated loss"

    class Config(SamplingHeadConfig):
        name: Literal["power"] = "power"
        b: float = Field(default=2.0, ge=0)

    objective: Config

    @torch.no_grad()
    def weights(self, projected_BKE: Tensor, prediction: Prediction) -> Tensor:
        z_BKV = self.score(projected_BKE)
        loss_BKV = hp_loss_weights(torch.ones_like(z_BKV), z_BKV, prediction.original_BK)
        return prediction.p_BKV * loss_BKV**self.objective.b


OBJECTIVES["power"] = "tests.proofs.power_worker:Power"

if __name__ == "__main__":
    from pretrain import evaluate, export, run
    from pretrain.evaluate import EvaluateOptions
    from pretrain.export import ExportOptions
    from pretrain.training.options import RunOptions

    commands = {"run": (run, RunOptions), "evaluate": (evaluate, EvaluateOptions), "export": (export, ExportOptions)}
    command, options = commands[sys.argv.pop(1)]
    sys.exit(run_command(command.main, options, command.__doc__))
