"""Claims about the run's configuration and its overrides."""

import pytest

from data_prep.config import ConfigError
from pretrain.config import ModelConfig, ObjectiveConfig, ObjectiveName, with_overrides
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
        ("objective.gamma=-1", "gamma: got -1.0, expected 0, a positive number to 100 or 'piecewise'"),
        ("model.heads=5", "hidden_size: got 256, expected a multiple of heads"),
        ("optim.betas.0=0.8", "unknown key 'optim.betas.0'; optim.betas is no section, so set optim.betas as a whole"),
        ("optim.lr.x=1", "unknown key 'optim.lr.x'; optim.lr is no section"),
        ("model.layers.x.y=1", "unknown key 'model.layers.x.y'; model.layers.x is no section"),
        ("objective.name.x=1", "unknown key 'objective.name.x'; objective.name is no section"),
        ('objective={"name": "electra"}', "the section 'objective'; set its keys one by one, such as objective.name"),
        ("objective.name=electra", "keep the weights of another objective; use --objective electra"),
        ("seed=100000000000000000000", "seed: got 100000000000000000000, expected"),
        (f"seed={'9' * 5000}", "seed: got '999"),
    ],
)
def test_a_wrong_override_is_one_error_that_names_it(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_overrides(RUN, [override])


def test_a_list_is_set_as_a_whole() -> None:
    assert with_overrides(RUN, ["optim.betas=[0.8, 0.9]"]).optim.betas == (0.8, 0.9)


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


def test_a_step_without_a_checkpoint_cannot_be_kept() -> None:
    with pytest.raises(ConfigError, match=r"keep_every: got 7, expected 0 or a multiple of checkpoint_every \(3\)"):
        with_overrides(RUN, ["checkpoint_every=3", "keep_every=7"])
    assert with_overrides(RUN, ["checkpoint_every=3", "keep_every=9"]).keep_every == 9
