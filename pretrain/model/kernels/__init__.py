"""Faster forms of the operations in `ops.py`: on CPUs, and in Triton on GPUs."""
