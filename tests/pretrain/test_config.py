"""Claims about the run's configuration and its overrides."""

import pytest

from data_prep.config import ConfigError
from pretrain.config import ModelConfig, ObjectiveConfig, with_overrides
from pretrain.presets import PRESETS

RUN = PRESETS["small"].run


def test_overrides_reach_every_level_and_keep_the_rest() -> None:
    changed = with_overrides(
        RUN, ["seed=3", "optim.lr=2e-4", "objective.gamma=piecewise", "model.relative_position=false"]
    )
    assert (changed.seed, changed.optim.lr, changed.objective.gamma) == (3, 2e-4, "piecewise")
    assert not changed.model.relative_position
    assert with_overrides(changed, []) == changed
    assert changed.optim.warmup_steps == RUN.optim.warmup_steps


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.learning_rate=1", "unknown key 'optim.learning_rate'; expected one of lr"),
        ("optimizer.lr=1", "unknown key 'optimizer.lr'"),
        ("seed", "expected key=value"),
        ("optim.lr=fast", "optim.lr: got 'fast', expected"),
        ("batch_size=0", "batch_size: got 0, expected"),
        ("objective.gamma=-1", "gamma: got -1.0, expected 0, a positive number or 'piecewise'"),
        ("model.heads=5", "hidden_size: got 256, expected a multiple of heads"),
    ],
)
def test_a_wrong_override_is_one_error_that_names_it(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_overrides(RUN, [override])


def test_all_wrong_overrides_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        with_overrides(RUN, ["sed=1", "optim.lr=1e-4", "nothing"])
    assert len(error.value.problems) == 2


@pytest.mark.parametrize(("preset", "heads", "feed_forward"), [("small", 1, 256), ("base", 4, 1024)])
def test_the_generator_keeps_depth_and_head_size_and_shrinks_with_its_width(
    preset: str, heads: int, feed_forward: int
) -> None:
    model = PRESETS[preset].run.model
    generator = model.generator(100)
    assert (generator.num_attention_heads, generator.intermediate_size) == (heads, feed_forward)
    assert (generator.num_hidden_layers, generator.embedding_size) == (model.layers, model.embedding_size)


def test_a_generator_width_that_no_whole_head_fits_is_refused() -> None:
    with pytest.raises(ConfigError, match="generator_hidden_size: got 80, expected a multiple of 64"):
        ModelConfig.from_values({**RUN.model.model_dump(), "generator_hidden_size": 80})


def test_only_electra_samples_from_p_g_alone() -> None:
    assert not ObjectiveConfig(name="electra").learns_to_sample
    assert ObjectiveConfig(name="hp_loss").learns_to_sample
