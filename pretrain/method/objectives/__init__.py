"""The training objectives: one class per objective, with the interface in objective.py, and a registry by name."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.method.objectives.objective import Objective

OBJECTIVES = {
    "hp_loss": "pretrain.method.objectives.hardness:HPLoss",
    "hp_dist": "pretrain.method.objectives.hardness:HPDist",
    "electra": "pretrain.method.objectives.electra:PlainElectra",
    "mlm": "pretrain.method.objectives.mlm:MaskedLM",
    "hp_loss_power": "pretrain.method.objectives.power:HPLossPower",
    "uniform": "pretrain.method.objectives.floors:Uniform",
    "unigram": "pretrain.method.objectives.floors:Unigram",
    "oracle": "pretrain.method.objectives.oracle:Oracle",
}
"""The registry: class of each objective, imported only on use, so that `--help` needs the names but not torch."""


def objective_class(name: str) -> "type[Objective]":
    """Imports and returns the class of this objective."""
    found: type[Objective] = resolve_name(OBJECTIVES[name])
    return found
