"""Claims about the sizes of a run's models."""

import pytest

from electra_sampler.foundation.config import ConfigError
from pretrain.model.config import ElectraModelConfig, ModernModelConfig
from pretrain.presets import PRESETS


@pytest.mark.parametrize(("preset", "heads", "feed_forward"), [("small", 1, 256), ("base", 4, 1024)])
def test_the_generator_keeps_depth_and_head_size_and_shrinks_with_its_width(
    preset: str, heads: int, feed_forward: int
) -> None:
    model = PRESETS[preset].model
    generator = model.generator(100)
    assert (generator.num_attention_heads, generator.intermediate_size) == (heads, feed_forward)
    assert (generator.num_hidden_layers, generator.embedding_size) == (model.layers, model.embedding_size)


def test_a_generator_width_that_is_not_a_multiple_of_the_head_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="generator_hidden_size: got 80, expected a multiple of 64"):
        ElectraModelConfig.from_values({**PRESETS["small"].model.model_dump(), "generator_hidden_size": 80})


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_size": 30, "heads": 2},
        {"hidden_size": 33, "heads": 3},
        {"hidden_size": 32, "heads": 2, "generator_hidden_size": 15},
    ],
    ids=str,
)
def test_a_head_of_odd_size_is_refused_where_rotary_positions_turn_pairs(sizes: dict[str, int]) -> None:
    values = PRESETS["modern_tiny"].model.model_dump() | {"generator_hidden_size": sizes["hidden_size"]} | sizes
    with pytest.raises(ConfigError, match=r"hidden_size: got \d+ with \d heads, expected an even size of each head"):
        ModernModelConfig.from_values(values)
