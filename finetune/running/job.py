"""The interface between a task and its runs: examples as token ids, a model to train, a loss, scores on the dev set.

Batches of examples follow from seed and epoch, and the ranks divide them. Shape letters: B batch, L length.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from electra_sampler.foundation.ordering import key_of, permuted
from finetune.running.records import Metrics, Task
from pretrain.job.processes import World
from pretrain.model.encoder import Encoder

IGNORED = -100
"""The target of positions to ignore, as in Hugging Face's and PyTorch's losses."""
_ORDER_OF_BATCHES = 2
"""Key of the random order of batches, so that it is independent of the order of examples."""


class Features(NamedTuple):
    """Tokenized examples: ids and segments of [CLS] A [SEP] (B [SEP]), and one or several targets per example."""

    input_ids: list[Any]
    token_type_ids: list[Any]
    targets: list[Any]


class Batch(NamedTuple):
    """A padded batch; `weight_B` is 1, or 0 for a filler that is ignored (see `collate`).

    `target_B` is [B] with one target per example, [B, targets] with several, [B, L] with one per position.
    """

    input_ids_BL: Tensor
    attention_mask_BL: Tensor
    token_type_ids_BL: Tensor
    target_B: Tensor
    weight_B: Tensor


def collate(features: Features, indices: Sequence[int] | np.ndarray, pad_id: int, device: torch.device) -> Batch:
    """Returns the examples `indices` as a batch, padded to the longest; without any, a single filler of weight 0."""
    chosen = indices if len(indices) else [0]
    ids = [torch.as_tensor(features.input_ids[i], dtype=torch.long) for i in chosen]
    segments = [torch.as_tensor(features.token_type_ids[i], dtype=torch.long) for i in chosen]
    targets = [torch.as_tensor(features.targets[i], dtype=torch.float).reshape(-1) for i in chosen]
    target_BX = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=IGNORED)
    lengths_B = torch.tensor([len(row) for row in ids])
    input_ids_BL = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=pad_id)
    batch = Batch(
        input_ids_BL,
        torch.arange(input_ids_BL.shape[1])[None, :] < lengths_B[:, None],
        torch.nn.utils.rnn.pad_sequence(segments, batch_first=True),
        target_BX if np.ndim(features.targets[0]) else target_BX[:, 0],
        torch.full((len(chosen),), float(len(indices) > 0)),
    )
    return Batch(*(tensor.to(device, non_blocking=True) for tensor in batch))


def epoch_batches(lengths: Sequence[int], batch_size: int, pool: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Returns the batches of an epoch as arrays of example indices; a remainder makes a smaller batch.

    They follow from (seed, epoch) alone. Examples are shuffled, sorted by length within pools of `pool` batches, and
    cut into batches, which are then shuffled. So batches need little padding, yet their composition changes from epoch
    to epoch. With a pool of 1, batches are random.
    """
    size = len(lengths)
    order = permuted(np.arange(size), size, seed, epoch)
    length_of = np.asarray(lengths)
    batches = []
    for start in range(0, size, pool * batch_size):
        chosen = order[start : start + pool * batch_size]
        chosen = chosen[np.argsort(length_of[chosen], kind="stable")]
        batches += np.split(chosen, range(batch_size, len(chosen), batch_size))
    places = permuted(np.arange(len(batches)), len(batches), key_of(seed, _ORDER_OF_BATCHES), epoch)
    return [batches[place] for place in places]


def shares(features: Features, world: World, size: int) -> Iterator[np.ndarray]:
    """Yields this rank's batches of up to `size` examples, sorted by length, as arrays of indices.

    Each example is on exactly one rank. All ranks have equally many batches, perhaps with empty ones, since every
    forward is collective under ZeRO-3.
    """
    order = np.argsort([len(ids) for ids in features.input_ids], kind="stable")
    step = size * world.world_size
    for start in range(0, len(order), step):
        yield order[start + world.rank : start + step : world.world_size]


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
