"""Kinds of model on disk. Each is a form: its settings in `config.json`, the names of its weights, its classes, and the
code that travels with it. Only the table `FORMS` tells one kind from another.

Everywhere else, names and classes are ELECTRA's, and an encoder's weights begin with `electra.`.

Shape letters: V vocabulary, E embedding size, H hidden size, P positions.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import AliasChoices, ConfigDict, Field, create_model
from torch import Tensor

from electra_sampler.foundation.config import ConfigError, StrictConfig, one_of
from pretrain.model.config import ElectraModelConfig, ModernModelConfig, Parts
from pretrain.model.sizes import EncoderSizes

DISCRIMINATOR, GENERATOR = "ElectraForPreTraining", "ElectraForMaskedLM"
JOINT_ANSWERER = "ElectraForJointQuestionAnswering"
"""The one class without a stock counterpart: its folder always carries the model code."""
TASKS = ("ElectraForSequenceClassification", "ElectraForTokenClassification", JOINT_ANSWERER)
"""Classes of fine-tuned models."""
MODEL_FILE, MODERN_FILE = "modeling_electra_sampler.py", "modeling_modern_sampler.py"
"""Model code that folders carry: copies of the modules in this package."""
WORDS, OUTPUT_MATRIX = "electra.embeddings.word_embeddings.weight", "generator_lm_head.weight"
Weights = Mapping[str, Tensor]
BOUNDS: dict[Any, Any] = {
    int: Annotated[int, Field(gt=0, le=2**20)],
    float: Annotated[float, Field(ge=0, le=1)],
    "num_hidden_layers": Annotated[int, Field(gt=0, le=2**10)],
    "type_vocab_size": Annotated[int, Field(gt=1, le=2**20)],
    "window": Annotated[int, Field(gt=0, le=2**20, multiple_of=2)],
    "global_every": Annotated[int, Field(gt=0, le=2**10)],
    **dict.fromkeys(("global_theta", "local_theta"), Annotated[float, Field(gt=1)]),
}
"""Types with limits of an encoder's settings, by field or by the field's type."""


class FormSettings(StrictConfig):
    """Settings of any form; unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)
    architectures: list[str] | None = None
    tie_word_embeddings: bool = True


class Form(NamedTuple):
    """A kind of model; functions take and return ELECTRA's names and classes unless they say otherwise."""

    model_type: str
    parts: Parts
    names: Mapping[str, str]
    """Settings in `config.json`, each with its field of the encoder's configuration."""
    others: dict[str, Any]
    """Types and defaults of further settings; many have a single value, since others compute what is not computed
    here.
    """
    derived: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Fields of the encoder's configuration that follow from the settings found, or from the form itself."""
    ours: Callable[[Weights, str], dict[str, Tensor]]
    """The weights of a folder with this class under ELECTRA's names."""
    classes: Mapping[str, str] = {}
    """ELECTRA's classes, each with this form's; none for a form that is only read."""
    holds: Callable[[Any], bool] = lambda config: True
    """Whether an encoder of these `parts` can have this form."""
    describe: Callable[..., dict[str, Any]] = lambda *given: {}
    """The settings in `config.json`, from the encoder's configuration, the class, the stock weights, and the ids of
    special tokens.
    """
    theirs: Callable[[Weights, Any], Weights] = lambda weights, config: weights
    """Weights of an encoder with this configuration, of its head or of both, under this form's names."""
    code: tuple[str, ...] = ()
    """Modules of this package that a folder carries, the one with the classes first."""
    inputs: tuple[str, ...] = ()
    """Inputs that the tokenizer gives a pre-trained model, if not BERT's."""
    predicts_alone: bool = False
    """Whether a masked language model named alone starts a generator; else it starts the discriminator's encoder."""
    folds: bool = False
    """Whether the projections of a narrow generator are multiplied into its tables."""

    def read(self, values: Mapping[str, Any], source: str) -> EncoderSizes:
        """Returns the encoder's configuration in the `values` of a `config.json`.

        Raises:
            ConfigError: it computes what is not computed here.
        """
        fields = {field.name: field for field in dataclasses.fields(self.parts.config)}
        types: dict[str, Any] = {
            theirs: (
                BOUNDS.get(ours) or BOUNDS.get(fields[ours].type, fields[ours].type),
                ... if fields[ours].default is dataclasses.MISSING else fields[ours].default,
            )
            for theirs, ours in self.names.items()
        }
        try:
            found = dict(
                create_model("Settings", __base__=FormSettings, **types | self.others).from_values(values, source)
            )
            return self.parts.config(
                **{ours: found[theirs] for theirs, ours in self.names.items()} | self.derived(found)
            )
        except (ConfigError, ValueError) as error:
            problems = error.problems if isinstance(error, ConfigError) else (f"{source}: {error}",)
            raise ConfigError(*(f"{problem}; correct it, or name another model" for problem in problems)) from None


def form_named(model_type: Any, source: str) -> Form:
    """Returns the form of this `model_type`.

    Raises:
        ConfigError: there is none.
    """
    forms = {form.model_type: form for form in FORMS}
    if str(model_type) not in forms:
        raise ConfigError(f"{source} has model_type {model_type!r}; {one_of(model_type, forms)}; name such a model")
    return forms[model_type]


def form_of(config: EncoderSizes, architecture: str) -> Form:
    """Returns the form in which a model with this encoder, of this class, is written."""
    return next(
        form
        for form in FORMS
        if form.parts.config is type(config) and architecture in form.classes and form.holds(config)
    )


def of_encoder(weights: Weights) -> dict[str, Tensor]:
    """Returns the weights of the encoder, without those of heads."""
    return {name: weight for name, weight in weights.items() if name.startswith("electra.")}


def renamed(name: str, names: Mapping[str, str]) -> str:
    prefix = next((prefix for prefix in names if name.startswith(prefix)), "")
    return names.get(prefix, "") + name.removeprefix(prefix)


def auto_map(file: str, classes: Mapping[str, str]) -> dict[str, Any]:
    """Returns the setting that names the classes in a folder's code for `AutoModel`."""
    return {"auto_map": {auto: f"{file.removesuffix('.py')}.{name}" for auto, name in classes.items()}}


def electra_weights(weights: Weights, architecture: str) -> dict[str, Tensor]:
    bare = WORDS.removeprefix("electra.") in weights  # an `ElectraModel`
    return {f"electra.{name}" if bare else name: weight for name, weight in weights.items()}


def electra_settings(config: Any, architecture: str, stock: Weights, special: Mapping[str, int]) -> dict[str, Any]:
    fields = dataclasses.asdict(config).items()
    return {
        "hidden_act": "gelu",
        "pad_token_id": special["pad"],
        "tie_word_embeddings": True,
        **{name: value for name, value in fields if config.relative_position or not name.startswith("relative_")},
    }


def relative_settings(config: Any, architecture: str, stock: Weights, special: Mapping[str, int]) -> dict[str, Any]:
    tasks = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
    classes = {
        "AutoConfig": "ElectraSamplerConfig",
        "AutoModel": "ElectraSamplerModel",
        **{f"AutoModelFor{task}": f"ElectraSamplerFor{task}" for task in ("PreTraining", "MaskedLM", *tasks)},
    }
    if architecture == JOINT_ANSWERER:
        classes["AutoModelForQuestionAnswering"] = architecture.replace("Electra", "ElectraSampler")
    relative = dataclasses.replace(config, relative_position=True)
    return electra_settings(relative, architecture, stock, special) | auto_map(MODEL_FILE, classes)


def with_table(weights: Weights, config: Any) -> Weights:
    """Adds a table of zeros to an encoder without relative positions."""
    zeros = torch.zeros(config.relative_attention_num_buckets, config.num_attention_heads)
    return {"electra.encoder.relative_attention_bias.weight": zeros, **weights} if WORDS in weights else weights


BERT_NAMES = {
    "attention.attn.q.": "attention.self.query.",  # MPNet's
    "attention.attn.k.": "attention.self.key.",
    "attention.attn.v.": "attention.self.value.",
    "attention.attn.o.": "attention.output.dense.",
    "attention.LayerNorm.": "attention.output.LayerNorm.",
    "lm_head.bias": "generator_lm_head.bias",
    "lm_head.decoder.": "generator_lm_head.",
    "lm_head.layer_norm.": "generator_predictions.LayerNorm.",
    "lm_head.dense.": "generator_predictions.dense.",
    "cls.predictions.bias": "generator_lm_head.bias",
    "cls.predictions.decoder.": "generator_lm_head.",
    "cls.predictions.transform.": "generator_predictions.",
    "LayerNorm.gamma": "LayerNorm.weight",  # the original BERT's
    "LayerNorm.beta": "LayerNorm.bias",
}
"""Parts of BERT's and MPNet's parameter names, each with ELECTRA's name for it, replaced in this order."""


def bert_weights(weights: Weights, architecture: str) -> dict[str, Tensor]:
    """Leaves out the pooler, and heads for other tasks than a masked language model's."""
    own = {}
    for name, weight in weights.items():
        name = name.removeprefix("bert.").removeprefix("mpnet.")
        for theirs, ours in BERT_NAMES.items():
            name = name.replace(theirs, ours)
        own[f"electra.{name}" if name.startswith(("embeddings.", "encoder.")) else name] = weight
    return {name: weight for name, weight in own.items() if name.startswith(("electra.", "generator_"))}


PADDING = 1
"""The padding id in MPNet's code, whatever the configuration says; positions start after it, as in fairseq."""


def mpnet_weights(weights: Weights, architecture: str) -> dict[str, Tensor]:
    """MPNet has no segment embeddings, so both segments get zeros."""
    own = bert_weights(weights, architecture)
    table = "electra.embeddings.position_embeddings.weight"
    if table in own and own[table].dim() == 2:  # else it is refused where it is loaded
        own["electra.embeddings.token_type_embeddings.weight"] = torch.zeros(2, own[table].shape[1])
        own[table] = own[table][PADDING + 1 :]
    return own


class Rotation(StrictConfig):
    """Settings of one kind of layer's rotary positions in a ModernBERT."""

    model_config = ConfigDict(extra="ignore", strict=True)
    rope_type: Literal["default"] = Field(default="default", validation_alias=AliasChoices("rope_type", "type"))
    rope_theta: float | None = Field(default=None, gt=1)


MODERN_SETTINGS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "max_position_embeddings": "max_position_embeddings",
    "norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
    "local_attention": "window",
}
OLDER_SETTINGS = {
    "global_attn_every_n_layers": "global_every",
    "global_rope_theta": "global_theta",
    "local_rope_theta": "local_theta",
}
"""ModernBERT's settings of transformers 4, for which 5 has `layer_types` and `rope_parameters`."""
MODERN_NAMES = {
    "embeddings.word_embeddings.": "model.embeddings.tok_embeddings.",
    "norm.": "model.embeddings.norm.",
    "encoder.layer.": "model.layers.",
    "encoder.final_norm.": "model.final_norm.",
}
"""The parameter names of an encoder, and ModernBERT's."""
MODERN_HEADS = {
    "generator_predictions.dense.": "head.dense.",
    "generator_predictions.LayerNorm.": "head.norm.",
    "generator_lm_head.": "decoder.",
    "discriminator_predictions.dense.": "head.dense.",
    "discriminator_predictions.LayerNorm.": "head.norm.",
    "discriminator_predictions.dense_prediction.": "classifier.",
}


def layer_types(layers: int, every: int) -> list[str]:
    return [f"{'sliding' if layer % every else 'full'}_attention" for layer in range(layers)]


def modern_sizes(found: Mapping[str, Any]) -> dict[str, Any]:
    kinds, every = found["layer_types"], found["global_attn_every_n_layers"]
    if kinds is not None:
        every = kinds.index("full_attention", 1) if "full_attention" in kinds[1:] else every
        if kinds != layer_types(found["num_hidden_layers"], every):
            raise ValueError("layer_types: expected full attention in every n-th layer, from the first on")
    bases = {kind: one.rope_theta for kind, one in (found["rope_parameters"] or {}).items()}
    half = found["sliding_window"]  # if given, transformers uses it
    return {
        "embedding_size": found["hidden_size"],
        "window": 2 * half if half else found["local_attention"],
        "global_every": every,
        "global_theta": bases.get("full_attention") or found["global_rope_theta"],
        "local_theta": bases.get("sliding_attention") or found["local_rope_theta"],
    }


def modern_settings(config: Any, architecture: str, stock: Weights, special: Mapping[str, int]) -> dict[str, Any]:
    one_label = {"num_labels": 1, "id2label": {"0": "replaced"}, "label2id": {"replaced": 0}}
    classes = {
        "AutoConfig": "ModernSamplerConfig",
        f"AutoModelFor{architecture.partition('For')[2].removeprefix('Joint')}": architecture.replace(
            "Electra", "ModernSampler"
        ),
    }
    return {
        **{theirs: getattr(config, ours) for theirs, ours in MODERN_SETTINGS.items()},
        "attention_dropout": 0.0,
        "tie_word_embeddings": "decoder.weight" not in stock,
        **(auto_map(MODERN_FILE, classes) if architecture in TASKS else one_label),
        "layer_types": layer_types(config.num_hidden_layers, config.global_every),
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config.global_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_theta},
        },
        **{theirs: getattr(config, ours) for theirs, ours in OLDER_SETTINGS.items()},
        "pad_token_id": special["pad"],
        "cls_token_id": special["cls"],
        "bos_token_id": special["cls"],
        "sep_token_id": special["sep"],
        "eos_token_id": special["sep"],
    }


def modern_weights(weights: Weights, architecture: str) -> dict[str, Tensor]:
    """Leaves out heads for other tasks than a generator's or a discriminator's, which has one label."""
    detects = architecture == TASKS[1] and len(weights.get("classifier.weight", ())) < 2
    role = "generator" if architecture == GENERATOR else "discriminator" if detects else "none"
    heads = {theirs: ours for ours, theirs in MODERN_HEADS.items() if ours.startswith(role)}
    names = {theirs: f"electra.{ours}" for ours, theirs in MODERN_NAMES.items()} | heads
    bare = "embeddings.tok_embeddings.weight" in weights  # a `ModernBertModel`
    own = {renamed(f"model.{name}" if bare else name, names): weight for name, weight in weights.items()}
    return {name: weight for name, weight in own.items() if heads or name.startswith("electra.")}


def folded(weights: Weights, config: Any) -> Weights:
    """Where the encoder is narrower than the word embeddings, multiplies its two projections into the tables, so that
    embeddings and output matrix are no longer one: equal to the run's model within rounding.
    """
    own = {name.removeprefix("electra."): weight for name, weight in weights.items()}
    if (into_HE := own.pop("embeddings_project.weight", None)) is not None:
        words_VE = own["embeddings.word_embeddings.weight"]
        own["embeddings.word_embeddings.weight"] = words_VE @ into_HE.T
        if (out_EH := own.pop("generator_predictions.embeddings_project.weight", None)) is not None:
            own[OUTPUT_MATRIX] = words_VE @ out_EH
    return {renamed(name, MODERN_NAMES | MODERN_HEADS): weight for name, weight in own.items()}


ELECTRA = Form(
    model_type="electra",
    parts=ElectraModelConfig.parts,
    names={
        field.name: field.name
        for field in dataclasses.fields(ElectraModelConfig.parts.config)
        if field.name != "relative_position"
    },
    others={
        "hidden_act": (Literal["gelu"], "gelu"),
        "position_embedding_type": (Literal["absolute"], "absolute"),
        "is_decoder": (Literal[False], False),
        "add_cross_attention": (Literal[False], False),
        "quantization_config": (None, None),
    },
    derived=lambda found: {"relative_position": False},
    ours=electra_weights,
    classes={name: name for name in (DISCRIMINATOR, GENERATOR, *TASKS[:2])},
    holds=lambda config: not config.relative_position,
    describe=electra_settings,
    predicts_alone=True,
)
RELATIVE = ELECTRA._replace(  # it carries its code, so that no stock class drops the table without a word
    model_type="electra_sampler",
    derived=lambda found: {"relative_position": True},
    classes={name: name.replace("Electra", "ElectraSampler") for name in (DISCRIMINATOR, GENERATOR, *TASKS)},
    holds=lambda config: True,
    describe=relative_settings,
    theirs=with_table,
    code=(MODEL_FILE,),
)
BERT = Form(
    model_type="bert",
    parts=ELECTRA.parts,
    names={name: name for name in ELECTRA.names if not name.startswith(("embedding_size", "relative_"))},
    others=ELECTRA.others,
    derived=lambda found: {"relative_position": False, "embedding_size": found["hidden_size"]},
    ours=bert_weights,
)
MPNET = BERT._replace(
    model_type="mpnet",
    names={name: name for name in ELECTRA.names if name not in ("embedding_size", "max_position_embeddings")},
    others=ELECTRA.others | {"max_position_embeddings": (Annotated[int, Field(gt=PADDING + 1, le=2**20)], 512)},
    derived=lambda found: {
        "relative_position": True,
        "embedding_size": found["hidden_size"],
        "max_position_embeddings": found["max_position_embeddings"] - PADDING - 1,
    },
    ours=mpnet_weights,
)
MODERN = Form(
    model_type="modernbert",
    parts=ModernModelConfig.parts,
    names=MODERN_SETTINGS | OLDER_SETTINGS,
    others={
        "max_position_embeddings": (BOUNDS[int], 8192),
        "global_rope_theta": (BOUNDS["global_theta"], 160_000.0),
        **dict.fromkeys(("hidden_activation", "classifier_activation"), (Literal["gelu"], "gelu")),
        **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias"), (Literal[False], False)),
        "rope_parameters": (dict[Literal["full_attention", "sliding_attention"], Rotation] | None, None),
        "rope_scaling": (None, None),
        "layer_types": (list[str] | None, None),
        "sliding_window": (Annotated[int, Field(gt=0, le=2**19)] | None, None),  # half of `local_attention`
    },
    derived=modern_sizes,
    ours=modern_weights,
    classes={DISCRIMINATOR: "ModernBertForTokenClassification", GENERATOR: "ModernBertForMaskedLM"},
    describe=modern_settings,
    theirs=folded,
    inputs=("input_ids", "attention_mask"),
    folds=True,
)
MODERN_TASK = MODERN._replace(  # ModernBERT's own heads for these tasks have a LayerNorm, which a run's lack
    model_type="modern_sampler",
    ours=lambda weights, architecture: modern_weights(weights, "none"),
    classes={name: name.replace("Electra", "ModernSampler") for name in TASKS},
    code=(MODERN_FILE, MODEL_FILE),
    inputs=(),
)
FORMS = [ELECTRA, RELATIVE, MODERN, MODERN_TASK, BERT, MPNET]
"""The table; a form for another kind of encoder is one more entry."""
