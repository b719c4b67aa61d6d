"""The paper's runs and a tiny one, each number with its source; speed and memory are set in `ds_configs/`.

"paper" is Hao et al., Findings of ACL 2021. "GOO" is google-research/electra, the source of what the paper leaves open
(batch size, sequence length, weight decay, dropout, clipping).
"""

from typing import Any

from electra_sampler.foundation.config import ConfigError, one_of
from pretrain.config import RunConfig
from pretrain.engine.optim import OptimConfig
from pretrain.method.objective import ObjectiveConfig
from pretrain.method.registry import load_objective, objective_class
from pretrain.model.config import ElectraModelConfig, ModernModelConfig

PAPER: dict[str, dict[str, Any]] = {
    "hp_loss": {"lambda1": 5.0, "lambda2": 50.0, "gamma": 1.0},  # paper section 4.1
    "hp_dist": {"lambda1": 1.0, "lambda2": 50.0, "gamma": 1.0},  # paper section 4.1
    "electra": {"lambda2": 50.0, "gamma": 0.0},  # gamma 0 is cross-entropy, here and below
    "mlm": {"gamma": 0.0},
}
"""Default settings of each built-in objective; a sampler of your own declares its defaults itself."""


def objective_config(name: str, **settings: Any) -> ObjectiveConfig:
    """Returns the settings of an objective: `settings`, and the paper's for the rest."""
    return objective_class(name).Config.from_values(PAPER.get(name, {}) | settings)


TINY = RunConfig(
    # Ours: the smallest model seen to detect replacements in 2,000 steps (docs/evidence/results.md).
    model=ElectraModelConfig(
        layers=2,
        hidden_size=128,
        heads=4,
        intermediate_size=512,
        embedding_size=128,
        generator_hidden_size=64,
        dropout=0.0,
        attention_dropout=0.0,
        initializer_range=0.1,
        relative_bias_init="local",
    ),
    objective=objective_config("hp_loss"),
    optim=OptimConfig(lr=2e-3, warmup_steps=50, steps=2000),
    batch_size=64,
    log_every=50,
    histogram_every=500,
    evaluate_every=500,
    checkpoint_every=500,
)

SMALL = RunConfig(
    model=ElectraModelConfig(
        layers=12,  # all sizes: paper, table of pre-training hyperparameters
        hidden_size=256,
        heads=4,
        intermediate_size=1024,
        embedding_size=128,
        generator_hidden_size=64,  # 1/4
    ),
    objective=objective_config("hp_loss"),
    optim=OptimConfig(lr=5e-4, warmup_steps=10_000, steps=1_000_000),  # paper
    batch_size=128,  # GOO
    keep_every=50_000,  # ours: 20 points for the paper's figure of accuracy over steps, 15 for base
)

BASE = RunConfig(
    model=ElectraModelConfig(
        layers=12,  # all sizes: paper, table of pre-training hyperparameters
        hidden_size=768,
        heads=12,
        intermediate_size=3072,
        embedding_size=768,
        generator_hidden_size=256,  # 1/3
    ),
    objective=objective_config("hp_loss"),
    optim=OptimConfig(lr=1e-4, warmup_steps=10_000, steps=765_000),  # paper
    batch_size=256,  # GOO
    keep_every=50_000,
)


def modern(layers: int, hidden: int, intermediate: int, heads: int, **settings: Any) -> RunConfig:
    """Returns a run with the settings of `small` and ModernBERT's encoder; the generator has a quarter of its heads."""
    model = ModernModelConfig(
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        intermediate_size=intermediate,
        embedding_size=hidden,
        generator_hidden_size=hidden // heads * max(1, heads // 4),
        max_positions=1024,  # ModernBERT's length before its extension
    )
    return SMALL.model_copy(update={"model": model, **settings})


PRESETS = {
    "tiny": TINY,
    "small": SMALL,
    "base": BASE,
    # ModernBERT's encoder, in the shapes of Ettin (Weller et al. 2025, table 1)
    "modern_tiny": TINY.model_copy(
        update={
            "model": ModernModelConfig(
                layers=3,
                hidden_size=128,
                heads=4,
                intermediate_size=256,
                embedding_size=128,
                generator_hidden_size=64,
                dropout=0.0,
                initializer_range=0.1,
            )
        }
    ),
    "modern_17m": modern(7, 256, 384, 4),
    "modern_32m": modern(10, 384, 576, 6),
    "modern_68m": modern(19, 512, 768, 8),
    "modern_base": modern(22, 768, 1152, 12, optim=BASE.optim, batch_size=BASE.batch_size),
}

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    # GLUE and SQuAD 2.0 tables, small and base
    "BERT": ("mlm", {}),
    "ELECTRA": ("electra", {}),
    "HP_Loss + Focal": ("hp_loss", {}),
    "HP_Dist + Focal": ("hp_dist", {}),
    # ablation table, small: lambda1 without focal loss, then the focal loss
    "HP_Loss lambda1=5": ("hp_loss", {"lambda1": 5.0, "gamma": 0.0}),
    "HP_Loss lambda1=10": ("hp_loss", {"lambda1": 10.0, "gamma": 0.0}),
    "HP_Loss lambda1=20": ("hp_loss", {"lambda1": 20.0, "gamma": 0.0}),
    "HP_Loss gamma=piecewise": ("hp_loss", {"lambda1": 5.0, "gamma": "piecewise"}),
    "HP_Loss gamma=1": ("hp_loss", {"lambda1": 5.0, "gamma": 1.0}),
    "HP_Loss gamma=4": ("hp_loss", {"lambda1": 5.0, "gamma": 4.0}),
    # ours, with the weights of "HP_Loss + Focal": samplers in files of their own (docs/guide/samplers.md)
    "HP_Loss b=-1": ("samplers.power:HPLossPower", {"exponent": -1.0}),
    "HP_Loss b=0": ("samplers.power:HPLossPower", {"exponent": 0.0}),
    "HP_Loss b=.5": ("samplers.power:HPLossPower", {"exponent": 0.5}),
    "HP_Loss b=2": ("samplers.power:HPLossPower", {"exponent": 2.0}),
    "Uniform": ("samplers.floors:Uniform", {}),
    "Unigram": ("samplers.floors:Unigram", {}),
    "Oracle K=4": ("samplers.oracle:Oracle", {"candidates": 4}),
    "Oracle K=16": ("samplers.oracle:Oracle", {"candidates": 16}),
}
"""The rows of the paper's tables, in order, then ours; each works with any preset's sizes. The paper quotes BERT's
scores from its authors; the row here trains a masked language model of the discriminator's size on the same data."""


def preset(name: str) -> RunConfig:
    """Returns the configuration of this name.

    Raises:
        ConfigError: there is no such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset: got {name!r}, {one_of(name, PRESETS)}")
    return PRESETS[name]


def load_row(name: str) -> str:
    """Returns the name of a row, whose sampler is loaded; `with_row` refuses an unknown one."""
    if name in ROWS:
        load_objective(ROWS[name][0])
    return name


def with_row(run: RunConfig, name: str) -> RunConfig:
    """Returns `run` with the objective of a row of `ROWS`, whose sampler is loaded.

    Raises:
        ConfigError: there is no such row, or it has no meaning for the run's kind of encoder.
    """
    if type(run.model) is not type(BASE.model):
        raise ConfigError(
            f"row: got {name!r} with model.backbone {run.model.backbone}, but the rows are the paper's, on ELECTRA's"
            " encoder; use --objective and --set"
        )
    if name not in ROWS:
        raise ConfigError(f"row: got {name!r}, {one_of(name, ROWS)}")
    given, settings = ROWS[name]
    return run.model_copy(update={"objective": objective_config(given, **settings)})


def with_objective(run: RunConfig, name: str) -> RunConfig:
    """Returns `run` with another objective and the paper's loss weights for it."""
    return run.model_copy(update={"objective": objective_config(name)})
