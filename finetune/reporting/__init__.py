"""Finished runs as tables and a figure beside the paper's; trains nothing."""
