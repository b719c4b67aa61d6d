"""The settings of one fine-tuning run, and the options of the `run_*.py` commands that fill them."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, create_model

from electra_sampler.foundation.command_line import HIDDEN, Group, Metavar
from electra_sampler.foundation.config import MOST, StrictConfig, did_you_mean, parse_override, refuse, shown

Fraction = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, le=2**20)]


class Option(str):
    """Marks a setting that has a command-line option of its own; holds its default as `--help` shows it."""


class FinetuneConfig(StrictConfig):
    """The settings that, with task, model and seed, determine a run's result; `presets.py` fills them in."""

    learning_rate: Annotated[float, Field(ge=1e-30, le=1e30), Option("small 0.0003, base 0.0001")]
    """Peak learning rate of the head; `layer_decay` lowers it for the layers below."""
    epochs: Annotated[int, Field(ge=1, le=2**20), Option("3; RTE 10")]
    """Passes over the training examples."""
    batch_size: Annotated[int, Field(ge=1, le=2**20), Option("32")]
    """Examples per update, over all processes."""
    weight_decay: Annotated[float, Field(ge=0, le=100)]
    """Decoupled weight decay; LayerNorm and biases have none."""
    max_length: Annotated[int, Field(ge=8, le=MOST), Option("GLUE 128, tagging 256, SQuAD 512")]
    """Maximum word pieces per sequence, special tokens included."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Learning-rate factor from each layer to the one below it (paper's fine-tuning table)."""
    warmup_fraction: Fraction = 0.1
    """Share of the updates in which the learning rate rises (paper's fine-tuning table)."""
    dropout: Fraction = 0.1
    """Dropout of hidden states and before the head (paper's fine-tuning table)."""
    attention_dropout: Fraction = 0.1
    """Dropout of attention weights (paper's fine-tuning table)."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Adam's decay rates (paper's fine-tuning table)."""
    eps: Annotated[float, Field(ge=1e-30, le=1)] = 1e-6
    """Adam's epsilon (paper's fine-tuning table)."""
    gradient_clipping: Annotated[float, Field(gt=0)] = 1.0
    """Largest global gradient norm (not in the paper; google-research/electra `model/optimization.py`)."""
    length_pool: Count = 50
    """Number of batches whose examples are sorted by length together, to save padding; 1 sorts nothing.
    (50 as in Hugging Face's Trainer when it groups by length.)"""


class GlueConfig(FinetuneConfig):
    """The settings of a run on GLUE."""

    head: Annotated[Literal["electra", "hf"], Option("electra")] = "electra"
    """Head on [CLS]: google-research/electra's one dense layer, or Hugging Face's two."""


class SquadConfig(FinetuneConfig):
    """The settings of a run on SQuAD; the defaults that `presets.py` fills in are google-research/electra's."""

    max_question: Annotated[Count, Option("64")]
    """Maximum word pieces of a question; the rest is cut."""
    stride: Annotated[Count, Option("128")]
    """Word pieces from the start of one window on a paragraph to the start of the next."""
    head: Annotated[Literal["electra", "xlnet"], Option("electra")] = "electra"
    """Answer head and conventions: google-research/electra's or XLNet's."""


class TaggingConfig(FinetuneConfig):
    """The settings of a run on token classification."""

    head: Literal["linear"] = "linear"
    """Dropout and one linear layer, as Hugging Face's `ElectraForTokenClassification`."""


Settings = GlueConfig | SquadConfig | TaggingConfig


class FinetuneOptions(StrictConfig):
    """The options that all commands share."""

    settings_class: ClassVar[type[Settings]]
    """Class of the settings of the command's runs."""

    model: Annotated[str, Group("the runs")]
    """exported folder, or hub name of a stock ELECTRA"""
    seeds: tuple[Seed, ...] = (1, 2, 3, 4, 5)
    """one run per seed; the paper reports the median of five"""
    random_weights: bool = False
    """fine-tune an untrained encoder of the same shape: the baseline"""
    grid: Literal["paper"] | None = None
    """run every setting that the paper searched, not only the default"""
    deepspeed_config: Annotated[Path, Group("machines")] = Path("auto")
    """precision, ZeRO stage, micro-batch; auto: the hardware's fastest precision"""
    output: Annotated[Path, Group("data and output")]
    """folder of results.jsonl"""
    keep: Literal["median", "best", "all", "none"] = "median"
    """seeds whose model is kept, in OUTPUT/finetuned"""
    set: Annotated[tuple[str, ...], Group("settings"), Metavar("KEY=VALUE")] = ()
    """change any setting, or DeepSpeed's: layer_decay=0.9 deepspeed.bf16.enabled=true"""
    list_settings: bool = False
    """print every KEY of --set, its value and its meaning"""
    local_rank: Annotated[int, HIDDEN] = 0

    def overrides(self) -> dict[str, Any]:
        """Returns the settings given on the command line, by their field in `settings_class`.

        Raises:
            ConfigError: `--set` has an unknown setting, or a setting is given more than once.
        """
        known = self.settings_class.model_fields
        given = [
            *((name, value) for name, value in self if name in known and value is not None),
            *(parse_override(one) or (one, None) for one in self.set if one not in self.of_deepspeed),
        ]
        names = [name for name, _ in given]
        refuse(
            f"--set: got {shown(name)}, expected KEY=VALUE with a KEY from --list_settings{did_you_mean(name, known)}"
            for name in names
            if name not in known
        )
        refuse(
            f"--set: {name} is given more than once; give it once, by --set or by its option"
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        )
        return dict(given)

    @property
    def of_deepspeed(self) -> list[str]:
        """The entries of `--set` that change DeepSpeed's configuration."""
        return [override for override in self.set if override.startswith("deepspeed.")]


Options = TypeVar("Options", bound=FinetuneOptions)


def with_settings(options_class: type[Options]) -> type[Options]:
    """Adds a command-line option for each setting marked by `Option`; `None` means the default of `presets.py`."""
    added: dict[str, Any] = {}
    for name, field in options_class.settings_class.model_fields.items():
        for default in (mark for mark in field.metadata if isinstance(mark, Option)):
            meaning = " ".join((field.description or "").split()).rstrip(".")
            kind: Any = field.rebuild_annotation()
            added[name] = (
                Annotated[kind | None, Group("settings")],
                Field(default=None, description=f"{meaning[:1].lower()}{meaning[1:]} ({default})"),
            )
    made = create_model(options_class.__name__, __base__=options_class, __doc__=options_class.__doc__, **added)
    made.__module__ = options_class.__module__
    return made


@with_settings
class GlueOptions(FinetuneOptions):
    """The command line of `run_glue.py`."""

    settings_class = GlueConfig

    task: Annotated[tuple[str, ...], Group("the runs")] = ("all",)
    """GLUE tasks by name, in any case, such as CoLA rte, or all"""
    data_dir: Annotated[str, Group("data and output")] = "data/glue"
    """folder with TASK/train.tsv and dev.tsv; or hub, or hub:NAME"""
    output: Annotated[Path, Group("data and output")] = Path("runs/glue")
    """folder of results.jsonl; runs already in it are skipped"""
    predict_test: bool = False
    """predict test sets in GLUE's submission format; with MNLI also AX"""


@with_settings
class SquadOptions(FinetuneOptions):
    """The command line of `run_squad.py`."""

    settings_class = SquadConfig

    version: Annotated[Literal["2.0", "1.1"], Group("the runs")] = "2.0"
    """SQuAD's release; 2.0 has questions without answer"""
    data_dir: Annotated[Path, Group("data and output")] = Path("data/squad")
    """folder of train-v2.0.json and dev-v2.0.json, or v1.1's"""
    output: Annotated[Path, Group("data and output")] = Path("runs/squad")
    """results and predictions; finished runs are skipped"""


@with_settings
class TaggingOptions(FinetuneOptions):
    """The command line of `run_tagging.py`."""

    settings_class = TaggingConfig

    task: Annotated[Literal["NER", "POS"], BeforeValidator(str.upper), Group("the runs")]
    """NER (entities in IOB2, scored by seqeval) or POS (accuracy over words)"""
    data_dir: Annotated[Path, Group("data and output")]
    """folder of a train and a dev file: CoNLL columns, or CoNLL-U (.conllu)"""
    output: Annotated[Path, Group("data and output")] = Path("runs/tagging")
    """results and predictions; finished runs are skipped"""
    predict_test: bool = False
    """score and predict the test file too"""
