"""Finished runs as tables beside the paper's; trains nothing."""
