"""Sends curves to MLflow at MLFLOW_TRACKING_URI: one MLflow run per start, named after the run folder.

MLflow has no histogram or text curves, so these are stored as artifacts.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mlflow import MlflowClient, MlflowException
from mlflow.entities import Metric, Param

from foundation.config import ConfigError
from pretrain.training.curves import PROJECT, Curves
from pretrain.training.run_folder import DESCRIPTION, flat


class Writer:
    """MLflow writer. A separate thread sends, so training never waits for the network."""

    def __init__(self, folder: Path, step: int) -> None:
        """Starts a new MLflow run for this start of training, which begins at `step`.

        Raises:
            ConfigError: MLflow cannot be reached.
        """
        settings = flat(json.loads((folder / DESCRIPTION).read_text())["run"])
        try:
            self._client = MlflowClient()
            known = self._client.get_experiment_by_name(PROJECT)
            experiment = known.experiment_id if known else self._client.create_experiment(PROJECT)
            name = f"{folder.resolve().name} from step {step}"
            self._run = self._client.create_run(experiment, run_name=name).info.run_id
            self._client.log_batch(self._run, params=[Param(key, str(value)) for key, value in settings])
        except MlflowException as error:
            why = str(error).splitlines()[0]
            raise ConfigError(f"log_to: got mlflow, which does not start ({why}); see MLFLOW_TRACKING_URI") from None
        self._sender = ThreadPoolExecutor(max_workers=1)
        self._is_lost = False

    def write(self, step: int, curves: Curves) -> None:
        self._sender.submit(self._send, step, curves, round(time.time() * 1000))

    def _send(self, step: int, curves: Curves, milliseconds: int) -> None:
        if self._is_lost:
            return
        try:
            metrics = [Metric(name, value, milliseconds, step) for name, value in curves.scalars.items()]
            self._client.log_batch(self._run, metrics=metrics)
            for name, histogram in curves.histograms.items():
                self._client.log_dict(self._run, histogram._asdict(), f"{name}/step-{step:08}.json")
            for name, text in curves.texts.items():
                self._client.log_text(self._run, text, f"{name}/step-{step:08}.txt")
        except Exception as error:  # of any kind, after MLflow's own retries: training continues
            self._is_lost = True
            print(f"WARNING: MLflow failed at step {step} and gets no more curves: {error}", file=sys.stderr)

    def close(self) -> None:
        """Waits until everything is sent."""
        self._sender.shutdown()
        if not self._is_lost:
            self._client.set_terminated(self._run)
