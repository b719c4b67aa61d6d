"""Shards as batches of training; it reads what `data_prep` wrote, as `data_prep` defines it."""
