"""The training engine: the only package that imports DeepSpeed. Its configuration, checkpoints and optimization."""
