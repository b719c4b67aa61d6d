"""The interface between a task and its runs: a model to train, a loss, scores on the dev set."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from finetune.running.records import Metrics, Task
from finetune.tokens import Batch, Features, collate, shares
from pretrain.job.processes import World
from pretrain.model.encoder import Encoder


class Evaluation(NamedTuple):
    """Scores and answers of a model on the dev set or on test sets."""

    metrics: Metrics
    """Scores of each split whose labels are known."""
    files: Mapping[str, Any]
    """Answers to keep: file name -> text, or a value that JSON can hold."""
    constant: bool = False
    """Whether every dev example got the same answer."""


class HuggingFaceModel(NamedTuple):
    """A trained model as one of Hugging Face's classes."""

    architecture: str
    """Name of the class for a stock encoder, such as ElectraForTokenClassification."""
    head: Mapping[str, Tensor]
    """The head's weights, by their names in that class."""
    config: Mapping[str, Any]
    """Settings for `config.json` besides the encoder's, such as the labels."""
    pipeline: str
    """The task's name on Hugging Face's hub."""
    example: str
    """Python code for the model card; `{code}` is replaced by the argument that allows the folder's code to run."""


PIPELINE = """from transformers import pipeline

FOLDER = "."  # this folder, or its name on the hub
predict = pipeline("{task}", FOLDER{{code}})
print(predict({input}))"""
"""Example code for a model that a Hugging Face pipeline supports."""


def labels_of(names: Sequence[str]) -> dict[str, Any]:
    """Returns the names of the outputs in the form that `config.json` needs."""
    return {"id2label": dict(enumerate(names)), "label2id": {name: place for place, name in enumerate(names)}}


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """A task with its data as token ids; without training examples if it only predicts."""

    task: Task
    pad_id: int
    train: Features = field(default_factory=lambda: Features([], [], []))
    train_examples: int = 0
    """Number of training examples; one example may make several features."""

    @abstractmethod
    def build(self, encoder: Encoder) -> nn.Module:
        """Builds the task's model, with `encoder` as its attribute `electra` and the rest as `head`."""

    @abstractmethod
    def losses(self, output: Any, batch: Batch) -> Tensor:
        """Returns the loss of each feature of a batch [B], from the model's output."""

    @abstractmethod
    def evaluate(self, model: nn.Module, world: World) -> Evaluation:
        """Scores the dev set. Collective: the ranks share the examples, and all get the result."""

    def predict_tests(self, model: nn.Module, world: World) -> Evaluation:
        """Predicts the run's test sets, if any, and scores those with labels. Collective."""
        return Evaluation({}, {})

    @abstractmethod
    def to_hugging_face(self, head: Mapping[str, Tensor]) -> HuggingFaceModel:
        """Returns an equivalent Hugging Face model, given the weights of this model's head."""

    @torch.inference_mode()
    def answer_all(
        self,
        features: Features,
        model: nn.Module,
        world: World,
        batch_size: int,
        width: int,
        answer: Callable[[Any, Batch, np.ndarray], Tensor],
    ) -> Tensor:
        """Runs the model on all features in batches, and applies `answer` to its output, the batch and its indices.

        Returns the answers [features, width] in fp64, in order, on all ranks. Collective.
        """
        answers = torch.zeros(len(features.targets), width, dtype=torch.float64, device=world.device)
        for own in shares(features, world, batch_size):
            batch = collate(features, own, self.pad_id, world.device)
            output = model(batch)  # collective under ZeRO-3, so also without examples
            if len(own):
                answers[torch.from_numpy(own)] = answer(output, batch, own).double()
        if world.world_size > 1:
            dist.all_reduce(answers)
        return answers.cpu()


class LoadedTask(NamedTuple):
    """A task whose files have been read, as the queue of runs needs it."""

    task: Task
    data_sha256: str
    """Digest of the training and dev examples."""
    make_job: Callable[[Any, Any], Job]
    """Makes the job from a tokenizer and the settings of a run."""
    files: Sequence[str] = ()
    """Paths, in a finished run's folder, of its predictions of test sets."""
