"""SQuAD: its files, windows, head, answers and metrics, as a run needs them."""
