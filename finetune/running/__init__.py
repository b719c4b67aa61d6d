"""Fine-tuning runs of any task: training and resuming a model, and the record of the run."""
