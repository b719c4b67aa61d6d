"""Runs of fine-tuning, whatever the task: a model trained and resumed, and the record it leaves."""
