"""A run: its plan, folder, loop and log, and what it will need before it starts."""
