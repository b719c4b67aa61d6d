"""The training loop of a run, with its state, metrics and reports."""
