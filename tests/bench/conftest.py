"""Shares the shards of the pre-training tests."""

from tests.pretrain.conftest import shards_folder

__all__ = ["shards_folder"]
