"""Claims about the doctor's command, on a real run whose documents are too short and so padded."""

import pydoc_data.topics
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from pretrain.doctor import EXIT_FINDINGS, DoctorOptions, main
from pretrain.runs.log import RunLog, read_metrics

Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def padded_run(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory, launch: Launch) -> Path:
    """Folder of a run of six steps on documents of one line each."""
    folder = tmp_path_factory.mktemp("padded")
    lines = " ".join(pydoc_data.topics.topics.values()).splitlines()
    (folder / "text.txt").write_text("\n\n".join(line for line in lines if 40 < len(line) < 80))
    build = {"input": [str(folder / "text.txt")], "output": str(folder / "shards"), "seq_length": 128, "workers": 1}
    vocab = {"vocab": str(shards_folder / "tokenizer"), "sentences": "line", "held_out": 0.1}
    assert build_shards(BuildOptions.from_values(build | vocab)) == 0
    sets = ("optim.steps=6", "optim.warmup_steps=2", "batch_size=8", "log_every=1", "evaluate_sequences=8")
    command = ("pretrain/run.py", "--preset", "tiny", "--data", folder / "shards", "--output", folder / "run")
    process = launch(0, *command, "--set", *sets)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return folder / "run"


def examined(launch: Launch, run: Path) -> tuple[int, list[str]]:
    process = launch(0, "pretrain/doctor.py", run)
    output, _ = process.communicate(timeout=200)
    return process.returncode, output.splitlines()


def test_a_real_run_with_much_padding_gets_that_finding_first_with_evidence_and_remedy(
    padded_run: Path, launch: Launch
) -> None:
    code, lines = examined(launch, padded_run)
    assert code == EXIT_FINDINGS and lines[0] == "padding waste"
    (evidence,) = [line for line in lines if line.startswith("  evidence  Padding is 0.")]
    assert "in steps 1 to 6; the limit is 0.25" in evidence
    assert any("--packing full" in line for line in lines)
    assert any("too short" in line for line in lines[lines.index("not judged:") :])


def test_a_later_state_of_the_run_without_padding_is_healthy(
    padded_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uses the run's last record, changed to the record of models that have learned."""
    record = read_metrics(padded_run, "train")[-1]
    losses = {"mlm_loss": 3.0, "discriminator_loss": 0.2}
    learned = losses | {"auc_all": 0.9, "estimate_correlation": {"replaced": 0.5}}
    own = {name: value for name, value in record.items() if name not in ("kind", "step")} | learned
    later = Path(shutil.copytree(padded_run, tmp_path / "run"))
    log = RunLog(later, step=0, total_steps=600)
    for step in range(100, 601, 100):
        log.write("train", step, own | {"tokens_so_far": step * 8 * 120})
    log.close()
    capsys.readouterr()
    assert main(DoctorOptions(run=later)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "healthy"
    assert [line for line in lines if line.startswith("  padding waste: Padding is 0.062")]
