"""Shares the small models and batches of the method's tests."""

from tests.pretrain.conftest import batch, make_electra

__all__ = ["batch", "make_electra"]
