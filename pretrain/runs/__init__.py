"""Runs on disk: folder, models, log, curves."""
