"""Claims about curves in MLflow, with its file store, read by its own client.

Skipped if the package is missing; `pip install -e .[mlflow]` installs it.
"""

from pathlib import Path

import pytest

from foundation.config import ConfigError
from pretrain.training.curves import PROJECT, Curves
from tests.pretrain.analysis.runs import write_run

mlflow = pytest.importorskip("mlflow", reason="MLflow is optional: pip install -e .[mlflow]")

from pretrain.training.curves import MLflow  # noqa: E402
from pretrain.training.run_log import RunLog  # noqa: E402


@pytest.fixture(autouse=True)
def _of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())


def test_numbers_arrive_at_their_steps_and_settings_as_parameters(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "base")
    for first in (1, 11):  # a start, and a resume
        writer = MLflow(folder, first)
        writer.write(first, Curves({"Loss/generator_loss/train": 2.5}))
        writer.write(first + 1, Curves({"Loss/generator_loss/train": 1.5, "Loss/generator_loss/held_out": 1.0}))
        writer.close()
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name(PROJECT).experiment_id])
    assert {run.info.run_name for run in runs} == {"base from step 1", "base from step 11"}
    (first,) = (run for run in runs if run.info.run_name == "base from step 1")
    assert first.info.status == "FINISHED" and first.data.params["objective.name"] == "hp_loss"
    seen = client.get_metric_history(first.info.run_id, "Loss/generator_loss/train")
    assert [(metric.step, metric.value) for metric in seen] == [(1, 2.5), (2, 1.5)]


def test_an_unreachable_server_is_named_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nothing://here")
    with pytest.raises(ConfigError, match=r"^log_to: got mlflow, which does not start .* correct MLFLOW_TRACKING_URI"):
        MLflow(write_run(tmp_path / "base"), 1)


def test_a_store_that_disappears_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = RunLog(write_run(tmp_path / "base"), 0, 10, ("mlflow",))
    (tmp_path / "store").rename(tmp_path / "gone")
    for step in (1, 2):
        log.write("train", step, {"generator_loss": 2.5})
    log.close()
    assert capsys.readouterr().out.count("WARNING: MLflow failed and gets no more curves: ") == 1
