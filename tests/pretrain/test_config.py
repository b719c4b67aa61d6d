"""Claims about a run's configuration and its overrides."""

import pytest

from electra_sampler.foundation.config import ConfigError
from pretrain.config import RunConfig, with_overrides
from pretrain.presets import PRESETS, with_objective

RUN = PRESETS["small"]


def test_overrides_reach_every_level_and_keep_other_values() -> None:
    changed = with_overrides(
        RUN, ["seed=3", "optim.lr=2e-4", "objective.gamma=piecewise", "model.relative_position=false"]
    )
    assert (changed.seed, changed.optim.lr, changed.objective.model_dump()["gamma"]) == (3, 2e-4, "piecewise")
    assert not changed.model.model_dump()["relative_position"]
    assert with_overrides(changed, []) == changed
    assert changed.optim.warmup_steps == RUN.optim.warmup_steps
    assert with_overrides(RUN, ["optim.betas=[0.8, 0.9]"]).optim.betas == (0.8, 0.9), "a list is replaced as a whole"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.learning_rate=1", "unknown key 'optim.learning_rate'; expected one of lr"),
        ("optimizer.lr=1", "unknown key 'optimizer.lr'.*; did you mean 'optim.lr'"),
        ("warmup_steps=1", "unknown key 'warmup_steps'.*; did you mean 'optim.warmup_steps'"),
        ("seed", "expected key=value"),
        ("optim.lr=fast", "optim.lr: got 'fast', expected"),
        ("batch_size=0", "batch_size: got 0, expected"),
        ("objective.gamma=-1", "gamma: got -1.0, expected 0, a positive number up to 100 or 'piecewise'"),
        ("model.heads=5", "hidden_size: got 256, expected a multiple of heads"),
        ("optim.betas.0=0.8", "unknown key 'optim.betas.0'; expected one of model, .*did you mean 'optim.betas'"),
        ("optim.lr.x=1", "unknown key 'optim.lr.x'; expected one of .*; did you mean 'optim.lr'"),
        ("model.layers.x.y=1", "unknown key 'model.layers.x.y'; expected one of model"),
        ('objective={"name": "electra"}', "unknown key 'objective'; expected one of model, objective, "),
        (
            "objective.mixture=0.1",
            "got 'objective.mixture=0.1', which objective hp_loss does not have; leave it out or choose hp_dist",
        ),
        ("objective.mixtur=0.1", "unknown key 'objective.mixtur'; expected one of name, gamma"),
        ("objective.name=electra", "keep the loss weights of another objective; use --objective electra"),
        ("seed=100000000000000000000", "seed: got 100000000000000000000, expected"),
        (f"seed={'9' * 5000}", "seed: got '999"),
        ("model.embedding_sharing=ges", r"model\.embedding_sharing: got 'ges', expected"),
    ],
)
def test_a_wrong_override_is_one_error_that_names_it(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_overrides(RUN, [override])


def test_an_objective_takes_its_own_switches_and_all_wrong_overrides_are_reported_at_once() -> None:
    run = with_objective(RUN, "hp_dist")
    assert with_overrides(run, ["objective.mixture=0.1"]).objective.model_dump()["mixture"] == 0.1
    with pytest.raises(ConfigError) as error:
        with_overrides(with_objective(RUN, "mlm"), ["objective.lambda1=1", "objective.mixture=.2", "sed=1", "nothing"])
    assert [problem.partition(" does")[0] for problem in error.value.problems[:2]] == [
        "--set: got 'objective.lambda1=1', which objective mlm",
        "--set: got 'objective.mixture=.2', which objective mlm",
    ]
    assert len(error.value.problems) == 4


def test_an_unknown_switch_in_a_file_is_answered_with_the_objectives_switches() -> None:
    values = RUN.model_dump(mode="json")
    values["objective"] |= {"lambda": 1}
    expected = ", ".join(type(RUN.objective).model_fields)
    said = rf"objective: unknown key 'lambda'; expected one of {expected}; did you mean 'lambda2'\?$"
    with pytest.raises(ConfigError, match=said):
        RunConfig.from_values(values, "run.json")
    assert "lambda1" in expected


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "model.embedding_sharing=gdes",
            r"model\.embedding_sharing: got 'gdes' with objective mlm, which trains one encoder; leave it out, or"
            " choose",
        ),
        (
            "mask_choice=1",
            r"mask_choice: got 1 with objective mlm, expected an objective with a discriminator: .*;"
            " leave",
        ),
    ],
    ids=["embeddings are shared by two encoders", "masks are chosen by a discriminator's loss"],
)
def test_what_needs_a_discriminator_is_refused_without_one(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        with_overrides(with_objective(RUN, "mlm"), [override])
    for objective in ("electra", "hp_loss", "hp_dist"):
        assert with_overrides(with_objective(RUN, objective), [override]) != with_objective(RUN, objective)
