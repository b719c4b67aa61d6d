"""Claim: between log lines the host reads loss and norm of each step, after the next step's backward, and no more."""

import json
from pathlib import Path

from tests.warm import run

STEPS = 30
NEVER = ("log_every=1000", "evaluate_every=1000", "checkpoint_every=1000", "histogram_every=1000")
SMALLEST = ("model.layers=1", "model.hidden_size=32", "model.intermediate_size=32", "model.generator_hidden_size=16")


def test_in_30_steps_the_host_reads_only_the_loss_and_the_norm_of_each(shards_folder: Path, tmp_path: Path) -> None:
    command: list[str | Path] = ["tests/proofs/host_reads.py", tmp_path / "counts.json", "--preset", "tiny"]
    command += ["--data", shards_folder, "--output", tmp_path / "run", "--deepspeed_config"]
    command += ["ds_configs/zero1_bf16.json", "--set", f"optim.steps={STEPS}", "optim.warmup_steps=2", "batch_size=4"]
    finished = run(*command, *NEVER, *SMALLEST)
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert finished.returncode == 0, finished.stderr
    every_step = {
        name: count
        for name, count in counts.items()
        if count >= STEPS - 1 and "init" not in name and "kernels/cpu_ops.py" not in name  # which packs, not on a GPU
    }
    ours = {name: count for name, count in every_step.items() if name.startswith("pretrain/")}
    outcome = "pretrain/engine/engine.py tolist"  # loss, norm and whether to stop
    assert ours == {outcome: STEPS}
    on_cpu = "torch/overrides.py unique"  # only in half precision on a CPU (pretrain/model/kernels/cpu_ops.py)
    assert every_step.keys() == {outcome, on_cpu}
