"""Claims about the presets: they have the paper's numbers, and the models have the known sizes."""

from collections.abc import Callable

import pytest
from transformers import ElectraConfig, ElectraModel

from electra_sampler.foundation.config import ConfigError
from pretrain.method.hardness_prediction import HPLoss
from pretrain.presets import PRESETS, ROWS, preset, with_objective, with_row


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("small", (12, 256, 4, 1024, 128, 64, 5e-4, 10_000, 1_000_000)),
        ("base", (12, 768, 12, 3072, 768, 256, 1e-4, 10_000, 765_000)),
    ],
)
def test_small_and_base_have_the_numbers_of_the_papers_table(name: str, numbers: tuple[float, ...]) -> None:
    run = PRESETS[name]
    model, optim = run.model, run.optim
    assert numbers == (
        *(model.layers, model.hidden_size, model.heads, model.intermediate_size),
        *(model.embedding_size, model.generator_hidden_size, optim.lr, optim.warmup_steps, optim.steps),
    )
    assert (optim.betas, optim.eps) == ((0.9, 0.999), 1e-6)
    weights = {"name": "hp_loss", "lambda1": 5.0, "lambda2": 50.0, "gamma": 1.0}
    assert weights.items() <= run.objective.model_dump().items()


def test_the_small_discriminator_is_hugging_faces_default_electra_plus_the_relative_table() -> None:
    """`ElectraConfig()` is google/electra-small-discriminator."""
    model = HPLoss(PRESETS["small"].model, PRESETS["small"].objective, 30_522, 103)
    theirs = sum(p.numel() for p in ElectraModel(ElectraConfig()).parameters())
    assert sum(p.numel() for p in model.discriminator.parameters()) == theirs + 32 * 4


@pytest.mark.parametrize("preset_name", ["small", "base"])
def test_every_row_of_the_papers_tables_can_be_run_by_name(preset_name: str) -> None:
    assert with_objective(PRESETS[preset_name], "hp_loss") == PRESETS[preset_name]
    paper = {
        "ELECTRA": ("electra", None, 0.0),
        "HP_Loss + Focal": ("hp_loss", 5.0, 1.0),
        "HP_Dist + Focal": ("hp_dist", 1.0, 1.0),
        "HP_Loss lambda1=5": ("hp_loss", 5.0, 0.0),
        "HP_Loss lambda1=10": ("hp_loss", 10.0, 0.0),
        "HP_Loss lambda1=20": ("hp_loss", 20.0, 0.0),
        "HP_Loss gamma=piecewise": ("hp_loss", 5.0, "piecewise"),
        "HP_Loss gamma=1": ("hp_loss", 5.0, 1.0),
        "HP_Loss gamma=4": ("hp_loss", 5.0, 4.0),
    }
    ours = {f"HP_Loss b={exponent}" for exponent in ("-1", "0", ".5", "2")}
    ours |= {"Uniform", "Unigram", "Oracle K=4", "Oracle K=16"}
    assert ROWS.keys() - paper.keys() - ours == {"BERT"}
    for name, expected in paper.items():
        objective = with_row(PRESETS[preset_name], name).objective.model_dump()
        assert (objective["name"], objective.get("lambda1"), objective["gamma"]) == expected
        assert objective["lambda2"] == 50.0


def test_the_dials_rows_differ_from_hp_loss_with_focal_loss_in_the_exponent_only() -> None:
    small = PRESETS["small"]
    paper = with_row(small, "HP_Loss + Focal").objective.model_dump(exclude={"name"})
    for exponent in (-1.0, 0.0, 0.5, 2.0):
        row = with_row(small, f"HP_Loss b={f'{exponent:g}'.lstrip('0') or 0}").objective.model_dump()
        assert row == paper | {"name": "hp_loss_power", "exponent": exponent}


@pytest.mark.parametrize(
    ("look_up", "said"),
    [
        (
            lambda: with_row(PRESETS["small"], "HP_Loss lambda1=7"),
            r"row: got 'HP_Loss lambda1=7', expected one of .*'HP_Loss lambda1=10'",
        ),
        (lambda: preset("large"), "preset: got 'large', expected one of tiny, small, base"),
    ],
    ids=["row", "preset"],
)
def test_an_unknown_name_is_answered_with_the_existing_ones(look_up: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        look_up()
