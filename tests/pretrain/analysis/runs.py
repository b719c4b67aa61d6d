"""Run folders as training leaves them, written by the real log without any training."""

from pathlib import Path
from typing import Any

import numpy as np

from pretrain.presets import TINY, with_objective
from pretrain.runs.folder import DESCRIPTION, RunDescription, write_json
from pretrain.runs.log import RunLog

GENERATOR = ("generator_loss", "mlm_loss", "mlm_accuracy")
DISCRIMINATOR = (
    *("sampler_loss", "discriminator_loss", "discriminator_entropy", "replace_rate", "accuracy_masked", "accuracy_all"),
    *("auc_all", "auc_masked", "ratio_p1", "ratio_p50", "ratio_p90", "ratio_p99"),
)
MACHINE = ("tokens_per_second", "peak_share", "gradient_norm", "learning_rate", "epoch")


def write_run(folder: Path, *steps: int, objective: str = "hp_loss", held_out: bool = True, **changes: Any) -> Path:
    """A run folder with a training record and an evaluation at each of these steps, all with different values."""
    run = with_objective(TINY, objective).model_copy(update=changes)
    description = RunDescription(
        precision="fp32",
        hardware="CPU with avx2",
        run=run,
        data=("data/shards",),
        data_sha256="0" * 64,
        tokenizer_sha256="0" * 64,
        seq_length=64,
        vocab_size=2048,
        mask_token_id=4,
        pad_token_id=0,
        versions={"python": "3.11"},
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / DESCRIPTION, description.model_dump(mode="json"))
    log = RunLog(folder, 0, run.optim.steps)
    for step in steps:
        log.write("train", step, values(objective, step))
        if held_out:
            log.write("held_out", step, values(objective, step + 10**6))
    log.close()
    return folder


def values(objective: str, seed: int) -> dict[str, Any]:
    """Values of a record for this objective."""
    random = np.random.default_rng(seed)
    names = GENERATOR + MACHINE + (DISCRIMINATOR if objective != "mlm" else ())
    sampled = ("p_G", "p_S") if objective != "mlm" else ("p_G",)
    nested: dict[str, Any] = {
        "entropy": {name: random.uniform(1, 5) for name in sampled},
        "max_probability": {name: random.dirichlet(np.ones(10)).tolist() for name in sampled},
    }
    if objective.startswith("hp_loss"):
        nested["estimate_correlation"] = {name: random.uniform(-1, 1) for name in ("original", "replaced", "all")}
    return {name: float(random.uniform(0.1, 1)) for name in names} | nested | {"skipped": 0, "loss_spikes": 0}
