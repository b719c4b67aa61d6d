"""DeepSpeed behind one seam, the only room that imports it; its configuration, checkpoints, optimization."""
