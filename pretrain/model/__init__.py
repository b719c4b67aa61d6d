"""The Transformer encoders and their heads, used by every model of this project, and their faster operations."""
