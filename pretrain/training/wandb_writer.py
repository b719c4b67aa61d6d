"""Curves in Weights & Biases: a run for each start, all of a run folder in one group; where to, W&B's environment says.

`WANDB_MODE=offline` writes to `RUN/wandb` alone, which `wandb sync` uploads later.
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
    """W&B has a process of its own, so training waits for no network."""

    def __init__(self, folder: Path, step: int) -> None:
        """
        Raises:
            ConfigError: W&B does not start, for want of a key for example.
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
        except Exception as error:  # of whatever kind: its process is gone, and training goes on
            self._is_lost = True
            print(f"WARNING: W&B took nothing of step {step}, nor will it to the end: {error}", file=sys.stderr)

    def close(self) -> None:
        """Waits until all is sent."""
        if not self._is_lost:
            self._run.finish()
