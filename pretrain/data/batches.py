"""Batches from memory-mapped shards: order and random numbers are functions of seed and step; masks are precomputed,
and chosen by `masks.py`.

The sample in row r of a step has the number s = step x batch_size + r. With n sequences, its epoch is s div n, and its
sequence is a bijection of (seed, epoch, s mod n). If several folders are mixed, s and n count only the sample's own
folder. Nothing is stored, so a resume needs only the step, at any world size, and the weights of a choice of masks.

Shape letters: B batch, L length, K masked positions per sequence, V vocabulary.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_prep.masking import MASK_RATE, mask_size
from electra_sampler.foundation.ordering import key_of, uniforms
from pretrain.data.masks import read_masked
from pretrain.data.shards import Shards

KEEP = 1
"""Key that makes `keep_uniforms_BK` independent of `uniforms_BK`."""
HELD_OUT_SEED = 1
"""Seed of every evaluation's draws: the same positions and uniforms each time, so that evaluations are comparable."""
WEIGHTS_EVERY = 100
"""Steps between updates of `weight_V`: the losses that it follows change over thousands of steps. Only the step after
an update is not prefetched."""


class Batch(NamedTuple):
    """One micro-batch of one rank; unused slots of `masked_positions` are 0 and not valid."""

    input_ids_BL: Tensor
    """Original ids, int64."""
    attention_mask_BL: Tensor
    """True on non-pad positions."""
    token_type_ids_BL: Tensor
    """Segment: 1 after the first [SEP], else 0; int64."""
    masked_positions_BK: Tensor
    """Indices of the masked positions, int64."""
    masked_valid_BK: Tensor
    """True for slots that hold a masked position, bool."""
    uniforms_BK: Tensor
    """Random numbers in (0, 1), fp32, one per masked position, keyed by (seed, sequence, epoch, position)."""
    keep_uniforms_BK: Tensor
    """Independent random numbers; below `mask_keep_fraction`, the generator sees the original token."""
    masked_count: float | Tensor
    """Mean number of masked positions per micro-batch, over all ranks and micro-batches of the optimizer step."""
    token_count: float | Tensor
    """Mean number of non-pad positions per micro-batch, over the same micro-batches."""

    @property
    def masked_BL(self) -> Tensor:
        """1 at the masked positions, int64."""
        return torch.zeros_like(self.input_ids_BL).scatter_add(1, self.masked_positions_BK, self.masked_valid_BK.long())

    def to(self, device: torch.device, counts: bool = False) -> "Batch":
        """Returns the batch on `device`; with `counts`, its counts are tensors, which a CUDA graph rereads at every
        replay.
        """
        parts = (torch.full((), part, device=device) if counts and isinstance(part, float) else part for part in self)
        return Batch._make(part.to(device, non_blocking=True) if isinstance(part, Tensor) else part for part in parts)

    def pinned(self) -> "Batch":
        """Returns a copy in pinned memory for asynchronous transfer; without a GPU, returns the batch itself."""
        if not torch.cuda.is_available():
            return self
        return Batch._make(part.pin_memory() if isinstance(part, Tensor) else part for part in self)


def random_batch(batch_size: int, seq_length: int, vocabulary: int, mask_rate: float = MASK_RATE) -> Batch:
    """Returns full-length sequences of random ids, masked at random positions: a batch to measure with."""
    shape, slots = (batch_size, seq_length), int(mask_size(seq_length, mask_rate))
    positions_BK = torch.rand(shape).argsort(1)[:, :slots].sort().values
    return Batch(
        input_ids_BL=torch.randint(vocabulary, shape),
        attention_mask_BL=torch.ones(shape, dtype=torch.bool),
        token_type_ids_BL=torch.zeros(shape, dtype=torch.int64),
        masked_positions_BK=positions_BK,
        masked_valid_BK=torch.ones_like(positions_BK, dtype=torch.bool),
        uniforms_BK=torch.rand(positions_BK.shape),
        keep_uniforms_BK=torch.ones(positions_BK.shape),
        masked_count=float(positions_BK.numel()),
        token_count=float(batch_size * seq_length),
    )


class BatchPlan(NamedTuple):
    """Distribution of a step's sequences over ranks and micro-steps: sequence i of a micro-batch is row
    (micro_step x world_size + rank) x micro_batch_size + i of the step.
    """

    batch_size: int
    micro_batch_size: int
    world_size: int
    rank: int

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step, over all ranks."""
        return self.batch_size // self.micro_batch_size

    def rows(self, micro_step: int) -> np.ndarray:
        start = (micro_step * self.world_size + self.rank) * self.micro_batch_size
        return np.arange(start, start + self.micro_batch_size)


class TrainingBatches:
    """The micro-batches of one rank, step by step; the plan does not change which samples a step has.

    Attributes:
        mask_rate: share of a sequence's tokens that are masked.
        weight_V: weight of each token in the choice of a mask, int64, equal on all ranks; `None`: no choice. It may
            change before a step that is a multiple of `WEIGHTS_EVERY`.
    """

    def __init__(self, shards: Shards, plan: BatchPlan, seed: int, mask_rate: float = MASK_RATE) -> None:
        self.shards, self.plan, self.seed, self.mask_rate = shards, plan, seed, mask_rate
        self.weight_V: np.ndarray | None = None

    def sequences(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns sequence index and epoch of every sample of the step, each int64 [batch_size]."""
        sample = np.arange(step * self.plan.batch_size, (step + 1) * self.plan.batch_size)
        return self.shards.mixture.shuffled(sample, self.seed)

    def step(self, step: int) -> list[Batch]:
        """Returns this rank's micro-batches of a step, on the CPU."""
        plan, size = self.plan, self.plan.batch_size
        # ranks may be a step behind
        self.shards.expect(np.arange(max(0, step - 1) * size, (step + 1) * size), self.seed)
        index, epoch = self.sequences(step)
        lengths = self.shards.lengths(index)
        counts = np.sum(mask_size(lengths, self.mask_rate)) / plan.micro_batches, lengths.sum() / plan.micro_batches
        masks = self.mask_rate, self.weight_V
        parts = [plan.rows(micro_step) for micro_step in range(plan.micro_batches // plan.world_size)]
        return [make_batch(self.shards, index[rows], epoch[rows], self.seed, counts, *masks).pinned() for rows in parts]

    def from_step(self, start: int, end: int) -> Iterator[list[Batch]]:
        """Yields the micro-batches of steps start..end-1 in order; reads the next step in the background, unless its
        masks are chosen by weights that are still to come.
        """
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as reader:
            read: Future[list[Batch]] | None = None
            for step in range(start, end):
                batches = (read or reader.submit(self.step, step)).result()
                known = self.weight_V is None or (step + 1) % WEIGHTS_EVERY
                read = reader.submit(self.step, step + 1) if step + 1 < end and known else None
                yield batches


def make_batch(
    shards: Shards,
    index: np.ndarray,
    epoch: np.ndarray,
    seed: int,
    counts: tuple[float, float] | None = None,
    mask_rate: float = MASK_RATE,
    weight_V: np.ndarray | None = None,
) -> Batch:
    """Builds the batch of the sequences `index`, each in its `epoch`.

    `counts` are the masked positions and tokens per micro-batch, averaged over the optimizer step. Without them, the
    batch's own counts are used, so its losses are means over this batch only. Masks are as in `read_masked`.

    Raises:
        LocalProblem: a sequence or its mask is damaged.
    """
    ids_BL, masked_BL, lengths = read_masked(shards, index, epoch, seed, mask_rate, weight_V)
    slots = int(mask_size(shards.manifest.seq_length, mask_rate))
    positions_BK = np.argsort(~masked_BL, axis=1, kind="stable")[:, :slots]
    valid_BK = np.arange(slots) < masked_BL.sum(axis=1)[:, None]
    is_separator_BL = ids_BL == shards.manifest.special_tokens.sep
    attention_BL = np.arange(ids_BL.shape[1]) < lengths[:, None]
    segment_BL = (np.cumsum(is_separator_BL, axis=1) - is_separator_BL > 0) & attention_BL
    masked, tokens = counts or (masked_BL.sum(), lengths.sum())
    return Batch(
        input_ids_BL=torch.from_numpy(ids_BL),
        attention_mask_BL=torch.from_numpy(attention_BL),
        token_type_ids_BL=torch.from_numpy(segment_BL.astype(np.int64)),
        masked_positions_BK=torch.from_numpy(np.where(valid_BK, positions_BK, 0)),
        masked_valid_BK=torch.from_numpy(valid_BK),
        uniforms_BK=torch.from_numpy(uniforms(seed, index, epoch, positions_BK)),
        keep_uniforms_BK=torch.from_numpy(uniforms(key_of(seed, KEEP), index, epoch, positions_BK)),
        masked_count=float(masked),
        token_count=float(tokens),
    )


def held_out_batches(shards: Shards, sequences: int, plan: BatchPlan, seed: int) -> Iterator[Batch]:
    """Yields one rank's batches of the first `sequences` held-out sequences, in full micro-batches on every rank.

    There is at least one batch; if the shards are too small for it, sequences repeat.
    """
    group = plan.micro_batch_size * plan.world_size
    for micro_step in range(max(1, min(sequences, len(shards)) // group)):
        index = shards.mixture.in_turn(plan.rows(micro_step))
        yield make_batch(shards, index, np.zeros_like(index), seed)
