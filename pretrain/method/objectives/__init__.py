"""What a run can train: one class an objective, which is all that the rest of the code knows of it (objective.py)."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.method.objectives.objective import Objective

OBJECTIVES = {
    "hp_loss": "pretrain.method.objectives.hardness:HPLoss",
    "hp_dist": "pretrain.method.objectives.hardness:HPDist",
    "electra": "pretrain.method.objectives.electra:PlainElectra",
    "mlm": "pretrain.method.objectives.mlm:MaskedLM",
}
"""The registry. Classes are imported when they are asked for: `--help` needs only the names, and not torch."""


def objective_class(name: str) -> "type[Objective]":
    """The class of this objective."""
    found: type[Objective] = resolve_name(OBJECTIVES[name])
    return found
