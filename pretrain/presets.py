"""The runs of the paper and a tiny one, every number with its source; speed and memory live in `ds_configs/`.

"paper" is Hao et al., Findings of ACL 2021; "GOO" is google-research/electra, for what the paper leaves open
(batch size, sequence length, weight decay, dropout, clipping).
"""

from typing import NamedTuple, get_args

from data_prep.config import ConfigError
from pretrain.config import ModelConfig, ObjectiveConfig, ObjectiveName, RunConfig
from pretrain.optim import OptimConfig


class Preset(NamedTuple):
    """A named run and the DeepSpeed file it uses unless told otherwise."""

    run: RunConfig
    deepspeed_config: str


TINY = RunConfig(
    # Ours: the smallest model seen to detect replacements within five minutes on two CPU cores (docs/reproduction.md).
    model=ModelConfig(
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
    objective=ObjectiveConfig(),
    optim=OptimConfig(lr=2e-3, warmup_steps=50, steps=2000),
    batch_size=64,
    log_every=50,
    evaluate_every=500,
    checkpoint_every=500,
)

SMALL = RunConfig(
    model=ModelConfig(
        layers=12,  # paper, table of pre-training hyperparameters; so are the next six
        hidden_size=256,
        heads=4,
        intermediate_size=1024,
        embedding_size=128,
        generator_hidden_size=64,  # 1/4
    ),
    objective=ObjectiveConfig(),  # paper: HP_Loss, gamma 1, lambda1 5, lambda2 50
    optim=OptimConfig(lr=5e-4, warmup_steps=10_000, steps=1_000_000),  # paper
    batch_size=128,  # GOO
)

BASE = RunConfig(
    model=ModelConfig(
        layers=12,  # paper, table of pre-training hyperparameters; so are the next six
        hidden_size=768,
        heads=12,
        intermediate_size=3072,
        embedding_size=768,
        generator_hidden_size=256,  # 1/3
    ),
    objective=ObjectiveConfig(),  # paper: HP_Loss, gamma 1, lambda1 5, lambda2 50
    optim=OptimConfig(lr=1e-4, warmup_steps=10_000, steps=765_000),  # paper
    batch_size=256,  # GOO
)

PRESETS = {
    "tiny": Preset(TINY, "ds_configs/zero1_bf16.json"),
    "small": Preset(SMALL, "ds_configs/zero1_fp16.json"),  # paper: V100, which has fp16 alone
    "base": Preset(BASE, "ds_configs/zero1_fp16.json"),
}

LAMBDA1 = {"hp_loss": 5.0, "hp_dist": 1.0, "electra": 0.0}  # paper section 4.1; ELECTRA has no sampling head
GAMMA = {"hp_loss": 1.0, "hp_dist": 1.0, "electra": 0.0}  # paper section 4.1; ELECTRA trains on cross-entropy


def preset(name: str) -> Preset:
    """The preset of this name.

    Raises:
        ConfigError: no such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset: got {name!r}, expected one of {', '.join(PRESETS)}")
    return PRESETS[name]


def with_objective(run: RunConfig, name: ObjectiveName) -> RunConfig:
    """`run` trained towards another objective, with the paper's weights for it."""
    assert name in get_args(ObjectiveName)
    objective = run.objective.model_copy(update={"name": name, "lambda1": LAMBDA1[name], "gamma": GAMMA[name]})
    return run.model_copy(update={"objective": objective})
