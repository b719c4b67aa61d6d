"""Claims about ELECTRA as an objective; test_hardness.py covers what it draws."""

from collections.abc import Callable

import pytest

from foundation.config import ConfigError
from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.method.objectives.electra import PlainElectra


def test_it_has_no_sampling_head_and_one_distribution_to_draw_from(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name="electra")
    assert not [name for name, _ in model.named_parameters() if name.startswith("sampler")]
    assert not model(batch).sampler_loss_BK.any()
    assert list(model.draws(*model.generate(batch), batch.uniforms_BK)) == ["p_G"]


def test_the_weight_of_a_loss_it_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="lambda1: unknown key; expected one of name, gamma"):
        PlainElectra.Config.from_values({"lambda1": 1.0})
