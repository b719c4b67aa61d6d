"""Sends curves to Weights & Biases: one W&B run per start, all starts of a run folder in one group.

W&B's environment variables choose the server. `WANDB_MODE=offline` writes only to `RUN/wandb`; `wandb sync` uploads it
later.
"""

import html
import json
import sys
from pathlib import Path

import wandb

from foundation.config import ConfigError
from pretrain.training.curves import PROJECT, Curves
from pretrain.training.run_folder import DESCRIPTION


class Writer:
    """W&B writer. W&B sends from its own process, so training never waits for the network."""

    def __init__(self, folder: Path, step: int) -> None:
        """Starts a new W&B run for this start of training, which begins at `step`.

        Raises:
            ConfigError: W&B does not start, for example without an API key.
        """
        name, config = folder.resolve().name, json.loads((folder / DESCRIPTION).read_text())
        settings = wandb.Settings(console="off", silent=True)
        try:
            self._run = wandb.init(
                project=PROJECT,
                group=name,
                name=f"{name} from step {step}",
                dir=folder,
                config=config,
                settings=settings,
            )
        except wandb.Error as error:
            raise ConfigError(f"log_to: got wandb, which does not start ({error}); see `wandb login`") from None
        self._is_lost = False

    def write(self, step: int, curves: Curves) -> None:
        if self._is_lost:
            return
        histograms = {
            name: wandb.Histogram(np_histogram=(found.counts, found.edges)) for name, found in curves.histograms.items()
        }
        texts = {name: wandb.Html(f"<p>{html.escape(text)}</p>") for name, text in curves.texts.items()}
        try:
            self._run.log({**curves.scalars, **histograms, **texts}, step=step)
        except Exception as error:  # of any kind, such as W&B's process gone: training continues
            self._is_lost = True
            print(f"WARNING: W&B failed at step {step} and gets no more curves: {error}", file=sys.stderr)

    def close(self) -> None:
        """Waits until everything is sent."""
        if not self._is_lost:
            self._run.finish()
