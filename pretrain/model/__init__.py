"""The Transformer encoders with their heads, and distributions over the vocabulary; kernels/ has faster operations."""
