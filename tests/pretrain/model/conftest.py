"""Operations as they were, after a test has replaced some."""

from inspect import isfunction

import pytest

from pretrain.model import ops


@pytest.fixture
def restored_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, form in list(vars(ops).items()):
        if isfunction(form):
            monkeypatch.setattr(ops, name, form)
