"""Token classification: tagged files, features, head and metrics, as a run needs them."""
