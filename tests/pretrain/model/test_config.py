"""Claims about the sizes of a run's models."""

import pytest

from electra_sampler.foundation.config import ConfigError
from pretrain.presets import PRESETS


@pytest.mark.parametrize(("preset", "heads", "feed_forward"), [("small", 1, 256), ("base", 4, 1024)])
def test_the_generator_keeps_depth_and_head_size_and_shrinks_with_its_width(
    preset: str, heads: int, feed_forward: int
) -> None:
    model = PRESETS[preset].model
    generator = model.generator(100)
    assert (generator.num_attention_heads, generator.intermediate_size) == (heads, feed_forward)
    assert (generator.num_hidden_layers, generator.embedding_size) == (model.layers, model.embedding_size)


ODD = r"hidden_size: got \d+ with \d heads, expected an even size of each head"


@pytest.mark.parametrize(
    ("preset", "sizes", "said"),
    [
        ("small", {"generator_hidden_size": 80}, "generator_hidden_size: got 80, expected a multiple of 64"),
        ("modern_tiny", {"hidden_size": 30, "heads": 2, "generator_hidden_size": 30}, ODD),
        ("modern_tiny", {"hidden_size": 33, "heads": 3, "generator_hidden_size": 33}, ODD),
        ("modern_tiny", {"hidden_size": 32, "heads": 2, "generator_hidden_size": 15}, ODD),
    ],
    ids=str,
)
def test_a_generator_without_whole_heads_is_refused_and_odd_heads_where_rotary_positions_turn_pairs(
    preset: str, sizes: dict[str, int], said: str
) -> None:
    model = PRESETS[preset].model
    with pytest.raises(ConfigError, match=said):
        type(model).from_values(model.model_dump() | sizes)
