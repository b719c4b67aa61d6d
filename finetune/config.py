"""The settings of one fine-tuning run, and the options of the `run_*.py` commands that fill them."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from foundation.command_line import HIDDEN, Group, Metavar
from foundation.config import MOST, FileName, StrictConfig

Fraction = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, le=2**20)]
Later = Annotated[bool, Field(exclude_if=lambda on: not on)]
"""A switch that earlier records lack; written only where it is on, so that folders of earlier runs keep their names."""


class FinetuneConfig(StrictConfig):
    """The settings that, with task, model and seed, determine a run's result; `presets.py` fills them in."""

    learning_rate: Annotated[float, Field(ge=1e-30, le=1e30)]
    """Peak learning rate of the task head; layers below it get less (`layer_decay`)."""
    epochs: Annotated[int, Field(ge=1, le=2**20)]
    """Passes over the training examples."""
    batch_size: Annotated[int, Field(ge=1, le=2**20)]
    """Examples per update, over all processes."""
    weight_decay: Annotated[float, Field(ge=0, le=100)]
    """Decoupled weight decay; LayerNorm and biases have none."""
    max_length: Annotated[int, Field(ge=8, le=MOST)]
    """Most word pieces per sequence, special tokens included; longer inputs are cut."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Learning-rate factor from each layer to the one below it (paper's fine-tuning table)."""
    legacy_layer_decay: bool = False
    """One more factor of decay on everything below the head, as in google-research/electra."""
    legacy_adam: Later = False
    """Adam without bias correction, as in google-research/electra."""
    multiplicative_warmup: Later = False
    """Warm-up multiplies a rate that decays from the first update on, as in google-research/electra."""
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

    head: Literal["electra", "hf"] = "electra"
    """google-research/electra's one dense layer, or Hugging Face's two."""
    both_orders: bool = False
    """Symmetric pairs are trained on in both orders, as google-research/electra does."""
    plain_scores: bool = False
    """Regression targets are the files' scores, not divided by the highest."""


class SquadConfig(FinetuneConfig):
    """The settings of a run on SQuAD; the defaults that `presets.py` fills in are google-research/electra's."""

    max_question: Count
    """Most word pieces of a question; the rest is cut."""
    stride: Count
    """Word pieces from the start of one window on a paragraph to the next."""
    max_answer: Count
    """Most word pieces of a predicted answer."""
    n_best: Count
    """Answers kept per window and per question."""
    null_threshold: float = -2.75
    """A question whose answerability logit exceeds it gets no answer; with the head `hf`, the score of [CLS] minus that
    of the best answer (0)."""
    head: Literal["electra", "xlnet", "hf"] = "electra"
    """Sizes and conventions of the head (`presets.HEAD_KINDS`)."""


class TaggingConfig(FinetuneConfig):
    """The settings of a run on token classification."""

    head: Literal["linear"] = "linear"
    """Dropout and one linear layer, as Hugging Face's `ElectraForTokenClassification`."""


class FinetuneOptions(StrictConfig):
    """The options that all commands share; `None` means the paper's value for the model's size (`presets.py`)."""

    model: Annotated[FileName, Group("the runs")]
    """exported folder, hub name of a stock ELECTRA, or with --steps a run"""
    steps: tuple[str, ...] = ()
    """the run's checkpoints to fine-tune: all, newest, or their steps"""
    seeds: tuple[Seed, ...] = (1, 2, 3, 4, 5)
    """one run per seed; the paper reports the median of five"""
    random_weights: bool = False
    """fine-tune an untrained encoder of the same shape: the baseline"""
    grid: Literal["paper"] | None = None
    """run every setting that the paper searched, not only the default"""
    learning_rate: Annotated[float | None, Group("settings")] = None
    """peak learning rate (small 0.0003, base 0.0001)"""
    epochs: int | None = None
    """passes over the training examples (3; RTE 10)"""
    batch_size: int | None = None
    """examples per update, over all processes (32)"""
    weight_decay: float | None = None
    """decoupled weight decay (small 0.0, base 0.01)"""
    max_length: int | None = None
    """most word pieces per sequence (GLUE 128, tagging 256, SQuAD 512)"""
    legacy_layer_decay: bool | None = None
    """layer-wise decay as google-research/electra counts it (off)"""
    legacy_adam: bool | None = None
    """Adam without bias correction, as google-research/electra's (off)"""
    multiplicative_warmup: bool | None = None
    """warm-up times a decaying rate, as google-research/electra's (off)"""
    deepspeed_config: Annotated[Path, Group("machines")] = Path("auto")
    """precision, ZeRO stage, micro-batch; auto: the hardware's fastest precision"""
    set: Annotated[tuple[str, ...], Metavar("KEY=VALUE")] = ()
    """override it: deepspeed.train_micro_batch_size_per_gpu=8"""
    list_settings: bool = False
    """print every KEY of --set, its value and its meaning"""
    output: Annotated[Path, Group("data and output")]
    """folder of results.jsonl"""
    keep: Literal["median", "best", "all", "none"] = "median"
    """seeds whose model is kept, in OUTPUT/finetuned"""
    local_rank: Annotated[int, HIDDEN] = 0

    def overrides(self) -> dict[str, Any]:
        """The settings given on the command line, keyed by their field in `FinetuneConfig` or its subclass."""
        return self.model_dump(include={*GlueConfig.model_fields, *SquadConfig.model_fields}, exclude_none=True)


class GlueOptions(FinetuneOptions):
    """The command line of `run_glue.py`."""

    task: Annotated[tuple[str, ...], Group("the runs")] = ("all",)
    """GLUE tasks by name, in any case, such as CoLA rte, or all"""
    data_dir: Annotated[FileName, Group("data and output")] = "data/glue"
    """folder of TASK/train.tsv, dev.tsv (or .jsonl, .parquet), or hub, or hub:NAME"""
    predict_test: bool = False
    """predict test sets in GLUE's submission format; with MNLI also AX"""
    head: Annotated[Literal["electra", "hf"] | None, Group("settings")] = None
    """google-research/electra's head or Hugging Face's (electra)"""
    both_orders: bool | None = None
    """train on MRPC's and STS-B's pairs in both orders (off)"""
    plain_scores: bool | None = None
    """learn STS-B's scores from 0 to 5, not from 0 to 1 (off)"""
    output: Annotated[Path, Group("data and output")] = Path("runs/glue")
    """folder of results.jsonl; runs already in it are skipped"""


class SquadOptions(FinetuneOptions):
    """The command line of `run_squad.py`."""

    version: Annotated[Literal["2.0", "1.1"], Group("the runs")] = "2.0"
    """SQuAD's release; 2.0 has questions without answer"""
    data_dir: Annotated[Path, Group("data and output")] = Path("data/squad")
    """folder of train-v2.0.json and dev-v2.0.json, or v1.1's"""
    output: Annotated[Path, Group("data and output")] = Path("runs/squad")
    """results and predictions; finished runs are skipped"""
    test_file: Path | None = None
    """further questions to answer, labelled or not"""
    head: Annotated[Literal["electra", "xlnet", "hf"] | None, Group("settings")] = None
    """electra's, XLNet's or Hugging Face's head and conventions (electra)"""
    stride: int | None = None
    """word pieces from one window on a paragraph to the next (128)"""
    max_question: int | None = None
    """most word pieces of a question (64)"""
    null_threshold: float | None = None
    """answerability logit above which no answer is given (-2.75)"""


class TaggingOptions(FinetuneOptions):
    """The command line of `run_tagging.py`."""

    task: Annotated[str, Group("the runs")]
    """NER (entities in IOB2, scored by seqeval) or POS (accuracy over words)"""
    data_dir: Annotated[Path, Group("data and output")]
    """folder of a train and a dev file: CoNLL columns, or CoNLL-U (.conllu)"""
    output: Annotated[Path, Group("data and output")] = Path("runs/tagging")
    """results and predictions; finished runs are skipped"""
    predict_test: bool = False
    """score and predict the test file too"""
