"""The shards and the launcher of the training run's own tests."""

from tests.pretrain.conftest import launch, shards_folder

__all__ = ["launch", "shards_folder"]
