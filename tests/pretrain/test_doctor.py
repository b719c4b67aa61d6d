"""Claims about the doctor's command, on a real run whose documents are too short and so padded."""

import pydoc_data.topics
from pathlib import Path

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from pretrain.doctor import EXIT_FINDINGS
from tests.pretrain.whole_runs import Launch, finished, run_arguments


def test_a_real_run_with_much_padding_gets_that_finding_first_with_evidence_and_remedy(
    shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    """Of six steps, on documents of one line each."""
    lines = " ".join(pydoc_data.topics.topics.values()).splitlines()
    (tmp_path / "text.txt").write_text("\n\n".join(line for line in lines if 40 < len(line) < 80))
    build = {"input": [str(tmp_path / "text.txt")], "output": str(tmp_path / "shards"), "seq_length": 128, "workers": 1}
    vocab = {"vocab": str(shards_folder / "tokenizer"), "sentences": "line", "held_out": 0.1}
    assert build_shards(BuildOptions.from_values(build | vocab)) == 0
    run = tmp_path / "run"
    finished(launch(0, *run_arguments(tmp_path / "shards", run, "optim.steps=6", "optim.warmup_steps=2")))
    said = finished(launch(0, "pretrain/doctor.py", run), code=EXIT_FINDINGS).splitlines()
    assert said[0] == "padding waste"
    (evidence,) = [line for line in said if line.startswith("  evidence  Padding is 0.")]
    assert "in steps 1 to 6; the limit is 0.25" in evidence
    assert any("--packing full" in line for line in said)
    assert any("too short" in line for line in said[said.index("not judged:") :])
