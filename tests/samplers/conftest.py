"""The fixtures of pre-training, for samplers in files of their own."""

from tests.pretrain.conftest import batch, make_electra, shards_folder

__all__ = ["batch", "make_electra", "shards_folder"]
