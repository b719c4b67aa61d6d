"""finetune/presets.py: the paper's fine-tuning numbers."""

from typing import Any

import pytest

from electra_sampler.foundation.config import ConfigError
from finetune.config import FinetuneConfig, GlueConfig, SquadConfig
from finetune.presets import HEAD_KINDS, NULL_THRESHOLD, paper_grid, settings_for


def test_a_small_model_gets_the_papers_small_settings() -> None:
    assert settings_for(GlueConfig, "CoLA", hidden_size=256, max_positions=512, overrides={}).model_dump() == {
        "learning_rate": 3e-4,
        "epochs": 3,
        "batch_size": 32,
        "weight_decay": 0.0,
        "max_length": 128,
        "layer_decay": 0.8,
        "warmup_fraction": 0.1,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "gradient_clipping": 1.0,
        "length_pool": 50,
        "head": "electra",
    }


@pytest.mark.parametrize(
    ("config", "task", "hidden_size", "max_positions", "expected"),
    [
        # a point of the paper's base grid, with more epochs for RTE
        (GlueConfig, "MNLI", 768, 512, {"learning_rate": 1e-4, "weight_decay": 0.01, "epochs": 3}),
        (GlueConfig, "RTE", 768, 512, {"learning_rate": 1e-4, "weight_decay": 0.01, "epochs": 10}),
        # lengths follow the model's positions
        (GlueConfig, "CoLA", 64, 48, {"max_length": 48}),
        (SquadConfig, "SQuAD 2.0", 64, 128, {"max_length": 128, "max_question": 16, "stride": 32}),
    ],
)
def test_settings_follow_the_models_size_its_positions_and_the_task(
    config: type[FinetuneConfig], task: str, hidden_size: int, max_positions: int, expected: dict[str, float]
) -> None:
    settings = settings_for(config, task, hidden_size, max_positions, {})
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("config", "task", "overrides", "problem"),
    [
        (GlueConfig, "CoLA", {"max_length": 64}, "max_length: got 64, expected at most the model's 48"),
        (SquadConfig, "SQuAD 2.0", {"max_question": 46}, r"max_length: got 48, expected at least max_question 46 \+ 4"),
    ],
)
def test_a_length_is_refused_beyond_the_models_positions_or_without_room_for_a_paragraph(
    config: type[FinetuneConfig], task: str, overrides: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        settings_for(config, task, 64, 48, overrides)


def test_squad_gets_the_papers_settings_and_electras_windows() -> None:
    settings = settings_for(SquadConfig, "SQuAD 2.0", 256, 512, {})
    shared = settings_for(GlueConfig, "CoLA", 256, 512, {}).model_dump()
    assert settings.model_dump() == shared | {"max_length": 512, "max_question": 64, "stride": 128}
    assert NULL_THRESHOLD == -2.75


def test_the_heads_have_the_sizes_of_their_sources() -> None:
    electra, xlnet = HEAD_KINDS["electra"], HEAD_KINDS["xlnet"]
    assert (electra.hidden_size, electra.activation, electra.beam) == (512, "gelu", 20)
    assert (xlnet.hidden_size, xlnet.activation, xlnet.beam) == (None, "tanh", 5)
    assert (electra.max_answer, electra.n_best, xlnet.max_answer, xlnet.n_best) == (30, 20, 64, 5)
    assert (electra.unanswerable_outside, xlnet.unanswerable_outside) == (False, True)
    assert (electra.last_separator, xlnet.last_separator) == (True, False)


def test_the_papers_grid_has_every_combination_and_starts_at_the_default() -> None:
    assert [point["epochs"] for point in paper_grid("CoLA", 256)] == [3, 4, 5]
    assert [point["epochs"] for point in paper_grid("RTE", 256)] == [10, 15, 20]
    base = paper_grid("SQuAD 2.0", 768)
    assert len({tuple(point.values()) for point in base}) == len(base) == 3 * 2 * 3
    assert {point["learning_rate"] for point in base} == {5e-5, 1e-4, 1.5e-4}
    assert settings_for(GlueConfig, "MNLI", 768, 512, paper_grid("MNLI", 768)[0]) == settings_for(
        GlueConfig, "MNLI", 768, 512, {}
    )
