"""Faster forms of `ops`: on CPUs, and in Triton on GPUs."""
