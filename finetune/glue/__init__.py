"""GLUE: its files, examples, head and metrics, as a run needs them."""
