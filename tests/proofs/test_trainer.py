"""Claims that fine-tuning equals Hugging Face's Trainer, given the same model, head, order and settings, and that the
Trainer trains the models that carry their code.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import SequentialSampler
from transformers import (
    BertTokenizerFast,
    DataCollatorWithPadding,
    ElectraConfig,
    ElectraForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from finetune.config import GlueConfig
from finetune.glue.files import load_task
from finetune.glue.job import GlueJob, make_job
from finetune.glue.tasks import TASKS, TaskData
from finetune.running.job import Features, epoch_batches
from finetune.running.train import Run, train
from pretrain.huggingface import modeling_electra_sampler, modeling_modern_sampler
from pretrain.huggingface.folders import load_tokenizer
from pretrain.huggingface.stored import read_stored
from pretrain.job.processes import start_processes
from tests.conftest import REPOSITORY
from tests.finetune.conftest import cola_folder, stock_model  # noqa: F401  (fixtures)

FP32 = REPOSITORY / "ds_configs" / "zero0_fp32.json"
COMPARED = 20
"""Number of losses compared, beginning with the first update."""


@pytest.fixture(autouse=True)
def ranks_forgotten() -> Iterator[None]:
    """Removes what the Trainer leaves in the environment, such as ranks that later processes take for theirs."""
    before = set(os.environ)
    yield
    for name in os.environ.keys() - before:
        del os.environ[name]


class Recorder(Trainer):
    """The Trainer, with a record of its losses and optionally a fixed order of its data."""

    def __init__(self, *arguments: Any, keep_order: bool = False, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.losses: list[float] = []
        self.keep_order = keep_order

    def _get_train_sampler(self, *arguments: Any) -> Any:
        return SequentialSampler(self.train_dataset) if self.keep_order else super()._get_train_sampler(*arguments)

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        result = super().compute_loss(*arguments, **named)
        self.losses.append(float((result[0] if isinstance(result, tuple) else result).detach()))
        return result


def rows(features: Features, order: Any) -> list[dict[str, Any]]:
    return [
        {
            "input_ids": features.input_ids[place],
            "token_type_ids": features.token_type_ids[place],
            "labels": int(features.targets[place]),
        }
        for place in order
    ]


def recorder(
    model: Any,
    tokenizer: Any,
    data: list[dict[str, Any]],
    settings: GlueConfig,
    folder: Path,
    seed: int = 1,
    keep_order: bool = False,
    micro_batches: int = 1,
) -> Recorder:
    """Hugging Face's Trainer with our settings but its own schedule and weight decay."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size // micro_batches,
        gradient_accumulation_steps=micro_batches,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adam_epsilon=settings.eps,
        max_grad_norm=settings.gradient_clipping,
        lr_scheduler_type="linear",
        warmup_steps=0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
    )
    return Recorder(
        model=model,
        args=arguments,
        train_dataset=data,
        data_collator=DataCollatorWithPadding(tokenizer),
        keep_order=keep_order,
    )


def stock_classifier(folder: Path, dropout: float) -> ElectraForSequenceClassification:
    return ElectraForSequenceClassification.from_pretrained(
        folder, num_labels=2, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )


SETTINGS = GlueConfig(
    learning_rate=3e-3,
    epochs=1,
    batch_size=8,
    weight_decay=0.01,
    max_length=32,
    layer_decay=1.0,
    warmup_fraction=0.0,
    dropout=0.0,
    attention_dropout=0.0,
    head="hf",
)


def test_the_first_losses_are_those_of_the_trainer(stock_model: Path, cola_folder: Path, tmp_path: Path) -> None:  # noqa: F811
    data = load_task(TASKS["CoLA"], str(cola_folder))
    tokenizer = load_tokenizer(stock_model)
    job = make_job(TASKS["CoLA"], TaskData(data.train[:200], data.dev), tokenizer, SETTINGS)  # whole batches only
    encoder = read_stored(stock_model).encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    run = Run(encoder, job, SETTINGS, 1, FP32, start_processes())
    lengths = [len(ids) for ids in job.train.input_ids]
    batches = epoch_batches(lengths, SETTINGS.batch_size, SETTINGS.length_pool, run.seed, 0)

    model = stock_classifier(stock_model, 0.0)
    model.classifier.load_state_dict(run.engine.module.get_submodule("head").state_dict())
    reference = recorder(
        model, tokenizer, rows(job.train, np.concatenate(batches)), SETTINGS, tmp_path, keep_order=True
    )
    reference.train()

    run.engine.module.train()
    losses = [float(run.update(chosen)) / len(chosen) for chosen in batches[:COMPARED]]
    assert losses == pytest.approx(reference.losses[:COMPARED], abs=1e-4)
    assert max(losses) - min(losses) > 0.05  # they learn, so the agreement means something


@pytest.mark.parametrize(
    "kind",
    [
        modeling_electra_sampler.ElectraSamplerForSequenceClassification,
        modeling_modern_sampler.ModernSamplerForSequenceClassification,
    ],
)
def test_micro_batches_have_the_loss_of_the_batch_in_a_model_that_carries_its_code(
    kind: Any,
    stock_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Of stock ELECTRA, the Trainer adds up the losses of the micro-batches."""
    model = kind(
        kind.config_class(
            vocab_size=51,
            pad_token_id=0,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    data = [{"input_ids": [2, 5 + number, 3], "labels": number % 2} for number in range(8)]
    losses = [
        recorder(
            model,
            load_tokenizer(stock_model),
            data,
            SETTINGS.model_copy(update={"learning_rate": 0.0}),  # the weights stay
            tmp_path,
            micro_batches=count,
        )
        .train()
        .training_loss
        for count in (1, 2)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_mean_scores_of_five_seeds_are_within_two_standard_errors_of_the_trainers(
    shared_data: Path, tmp_path: Path
) -> None:
    """4,000 real sentences of SST-2 and an untrained model of two layers: about 73% on both sides."""
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer = BertTokenizerFast(vocab=str(shared_data / "vocab" / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    shape = {"embedding_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = ElectraConfig(vocab_size=len(tokenizer), intermediate_size=256, max_position_embeddings=64, **shape)
    torch.manual_seed(0)
    ElectraForSequenceClassification(config).save_pretrained(folder)

    settings = SETTINGS.model_copy(
        update={"learning_rate": 1e-3, "epochs": 3, "batch_size": 32, "dropout": 0.1, "attention_dropout": 0.1}
    )
    data = load_task(TASKS["SST-2"], str(shared_data / "glue"))
    job = make_job(TASKS["SST-2"], TaskData(data.train[:4_000], data.dev), load_tokenizer(folder), settings)
    world = start_processes()
    seeds = range(1, 6)
    ours = [
        train(read_stored(folder), False, job, settings, seed, FP32, world).last["dev"]["accuracy"] for seed in seeds
    ]
    theirs = [trainer_accuracy(folder, tokenizer, job, settings, seed, tmp_path) for seed in seeds]
    standard_error = np.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / 5)
    assert min(*ours, *theirs) > 0.6, (ours, theirs)
    assert abs(np.mean(ours) - np.mean(theirs)) < 2 * standard_error, (ours, theirs)


def trainer_accuracy(
    folder: Path, tokenizer: Any, job: GlueJob, settings: GlueConfig, seed: int, output: Path
) -> float:
    torch.manual_seed(seed)
    model = stock_classifier(folder, settings.dropout)
    torch.nn.init.normal_(model.classifier.dense.weight, std=0.02)
    torch.nn.init.normal_(model.classifier.out_proj.weight, std=0.02)
    trained = recorder(model, tokenizer, rows(job.train, range(job.train_examples)), settings, output, seed)
    trained.train()
    dev = job.dev["dev"]
    answers = trained.predict(rows(dev, range(len(dev.targets)))).predictions.argmax(1)
    return float(np.mean(answers == np.array(dev.targets)))
