"""Claims that need a GPU."""
