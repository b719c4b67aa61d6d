"""Claims about curves in MLflow, with its file store, read by its own client.

Skipped if the package is missing; `pip install -e .[mlflow]` installs it.
"""

from pathlib import Path

import pytest

from foundation.config import ConfigError
from pretrain.training.curves import PROJECT, Curves, Histogram
from tests.pretrain.analysis.runs import write_run

mlflow = pytest.importorskip("mlflow", reason="MLflow is optional: pip install -e .[mlflow]")

from pretrain.training.mlflow_writer import Writer  # noqa: E402


@pytest.fixture(autouse=True)
def _of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())


def test_numbers_histograms_and_examples_arrive_at_their_steps(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "base")
    counted = Histogram([0.0, 0.5, 1.0], [0.25, 0.75])
    for first in (1, 11):  # a start, and a resume
        writer = Writer(folder, first)
        writer.write(first, Curves({"Loss/generator_loss/train": 2.5}, {"Sampling/max_probability/p_G/train": counted}))
        writer.write(first, Curves(texts={"Example/example/train": "[CLS] <cat>"}))
        writer.write(first + 1, Curves({"Loss/generator_loss/train": 1.5, "Loss/generator_loss/held_out": 1.0}))
        writer.close()
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name(PROJECT).experiment_id])
    assert {run.info.run_name for run in runs} == {"base from step 1", "base from step 11"}
    (first,) = (run for run in runs if run.info.run_name == "base from step 1")
    assert first.info.status == "FINISHED" and first.data.params["objective.name"] == "hp_loss"
    seen = client.get_metric_history(first.info.run_id, "Loss/generator_loss/train")
    assert [(metric.step, metric.value) for metric in seen] == [(1, 2.5), (2, 1.5)]
    path = "Sampling/max_probability/p_G/train/step-00000001.json"
    assert mlflow.artifacts.load_dict(f"{first.info.artifact_uri}/{path}") == counted._asdict()
    path = "Example/example/train/step-00000001.txt"
    assert mlflow.artifacts.load_text(f"{first.info.artifact_uri}/{path}") == "[CLS] <cat>"


def test_an_unreachable_server_is_named_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nothing://here")
    with pytest.raises(ConfigError, match=r"^log_to: got mlflow, which does not start .* see MLFLOW_TRACKING_URI$"):
        Writer(write_run(tmp_path / "base"), 1)


def test_a_store_that_disappears_does_not_end_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    writer = Writer(write_run(tmp_path / "base"), 1)
    (tmp_path / "store").rename(tmp_path / "gone")
    for step in (1, 2):
        writer.write(step, Curves({"Loss/generator_loss/train": 2.5}))
    writer.close()
    assert capfd.readouterr().err.count("WARNING: MLflow failed at step 1 and gets no more curves: ") == 1
