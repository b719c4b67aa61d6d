"""Turns shards into training batches; the shard format is defined in `data_prep`."""
