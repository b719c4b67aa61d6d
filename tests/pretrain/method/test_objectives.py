"""Claims about the configuration of an objective."""

import pytest

from foundation.config import ConfigError
from pretrain.method.objectives import ObjectiveConfig, ObjectiveName


@pytest.mark.parametrize(("name", "learns"), [("hp_loss", True), ("hp_dist", True), ("electra", False), ("mlm", False)])
def test_the_papers_objectives_alone_learn_to_sample(name: ObjectiveName, learns: bool) -> None:
    assert ObjectiveConfig(name=name).learns_to_sample == learns


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"importance_weighting": True, "forbid_original": True}, "importance_weighting: true with forbid_original"),
        ({"name": "hp_loss", "mixture": 0.1}, "mixture: got 0.1, which hp_loss has no use for"),
        ({"name": "electra", "ratio_clip": 4.0}, "ratio_clip: got 4.0, which electra has no use for"),
        ({"name": "electra", "detach_sampler_input": True}, "or choose hp_loss or hp_dist"),
        ({"name": "mlm", "temperature": 2.0}, "temperature: got 2.0, which mlm has no use for"),
        ({"name": "hp_dist", "mixture": 1.0}, "mixture: got 1.0, expected"),
        ({"mask_keep_fraction": 1.0}, "mask_keep_fraction: got 1.0, expected"),
    ],
)
def test_switches_that_do_not_fit_the_objective_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ObjectiveConfig.from_values(values)
