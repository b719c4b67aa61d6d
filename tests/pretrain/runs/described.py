"""The description of a run for tests."""

from pretrain.config import RunConfig
from pretrain.data.shards import Shards
from pretrain.runs.folder import RunDescription, describe


def described(run: RunConfig, shards: Shards) -> RunDescription:
    """Describes a run in fp32 that starts from nothing."""
    return describe(
        run, shards, data_weights=(), init_from=(), keep_optimizer=False, precision="fp32", hardware="unknown"
    )
