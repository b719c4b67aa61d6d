"""The fixtures of pre-training, for samplers in files of their own."""

from tests.pretrain.conftest import batch, make_electra

__all__ = ["batch", "make_electra"]
