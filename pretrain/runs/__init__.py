"""A run on disk: its folder, its models, its log and curves."""
