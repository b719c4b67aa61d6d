"""Hugging Face Trainer with the stock classes, as in its examples: the peer in `bench/finetune.py`.

It pads dynamically and uses its own fused AdamW and linear schedule; grouping by length stays off, as by default.
"""

import time
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DataCollatorWithPadding,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from bench.timing import wait_for_gpu
from finetune.config import FinetuneConfig
from finetune.running.job import Features


class EpochClock(TrainerCallback):
    """Records the seconds of each epoch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._started = 0.0

    def on_epoch_begin(self, *arguments: Any, **named: Any) -> None:
        wait_for_gpu()
        self._started = time.perf_counter()

    def on_epoch_end(self, *arguments: Any, **named: Any) -> None:
        wait_for_gpu()
        self.seconds.append(time.perf_counter() - self._started)


def classification_rows(features: Features) -> list[dict[str, Any]]:
    columns = zip(features.input_ids, features.token_type_ids, features.targets, strict=True)
    return [{"input_ids": ids, "token_type_ids": types, "labels": int(label)} for ids, types, label in columns]


def question_rows(features: Features) -> list[dict[str, Any]]:
    columns = zip(features.input_ids, features.token_type_ids, features.targets, strict=True)
    return [
        {
            "input_ids": ids.tolist(),
            "token_type_ids": types.tolist(),
            "start_positions": int(start),
            "end_positions": int(end),
        }
        for ids, types, (start, end, _) in columns
    ]


def train_peer(
    model_folder: Path, tokenizer: Any, rows: list[dict[str, Any]], settings: FinetuneConfig, output: Path, seed: int
) -> tuple[Trainer, list[float]]:
    """Trains a stock model on the rows; returns the Trainer and the seconds of each epoch."""
    kind = ElectraForQuestionAnswering if "start_positions" in rows[0] else ElectraForSequenceClassification
    torch.manual_seed(seed)
    dropout = {"hidden_dropout_prob": settings.dropout, "attention_probs_dropout_prob": settings.attention_dropout}
    model = kind.from_pretrained(model_folder, num_labels=2, **dropout)
    clock = EpochClock()
    arguments = TrainingArguments(
        output_dir=str(output),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=128,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adam_epsilon=settings.eps,
        max_grad_norm=settings.gradient_clipping,
        lr_scheduler_type="linear",
        warmup_steps=settings.warmup_fraction,  # below 1, it is a fraction of the steps
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        seed=seed,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[clock],
    )
    trainer.train()
    return trainer, clock.seconds
