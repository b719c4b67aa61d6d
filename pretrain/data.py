"""Batches from memory-mapped shards: stateless order, precomputed masks, keyed uniforms, global counts.

A sample's place in training is its number s = step x batch_size + row: its epoch is s div n, and its sequence is a
bijection of (seed, epoch, s mod n). Nothing is stored, so a resume needs the step alone, at any world size.

Shape letters: B batch, L length, K masked positions a sequence.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_prep.config import ConfigError
from data_prep.manifest import load_manifest
from data_prep.masking import masked_count
from data_prep.shards import IndexedFile
from pretrain.ordering import permuted, uniforms


class Batch(NamedTuple):
    """One micro-batch of one rank; slots beyond a sequence's masked positions point at 0 and are not valid."""

    input_ids_BL: Tensor
    """Original ids, int64."""
    attention_mask_BL: Tensor
    """True on non-pad positions."""
    token_type_ids_BL: Tensor
    """1 after the first [SEP], int64."""
    masked_positions_BK: Tensor
    """int64."""
    masked_valid_BK: Tensor
    """bool."""
    uniforms_BK: Tensor
    """fp32 in (0, 1): one draw a masked position, keyed by (seed, sequence, epoch, position)."""
    masked_count: float
    """Masked positions of the whole optimizer step over its number of micro-batches (all ranks)."""
    token_count: float
    """Non-pad positions, likewise."""

    def to(self, device: torch.device) -> "Batch":
        return Batch._make(part.to(device, non_blocking=True) if isinstance(part, Tensor) else part for part in self)


class Shards:
    """A folder of shards as one indexable collection of sequences."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = load_manifest(folder)
        self.ids = [IndexedFile(folder / shard.name) for shard in self.manifest.shards]
        self.masks = [IndexedFile(folder / f"{shard.name}.mask") for shard in self.manifest.shards]
        self.starts = np.cumsum([0, *(len(shard) for shard in self.ids)])
        if not len(self):
            raise ConfigError(f"data: {folder} holds no sequence; build it from more text")

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def mean_length(self) -> float:
        """Word pieces of a sequence on average."""
        return float(sum(shard.lengths.sum() for shard in self.ids)) / len(self)

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Length of each sequence in word pieces, int64."""
        shard_of = np.searchsorted(self.starts, indices, side="right") - 1
        lengths = np.empty(len(indices), dtype=np.int64)
        for shard in np.unique(shard_of):
            rows = shard_of == shard
            lengths[rows] = self.ids[shard].lengths[indices[rows] - self.starts[shard]]
        return lengths

    def read(self, indices: np.ndarray, mask_copies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids [B, L], padded, and booleans [B, L] of the masked positions, of the asked mask copy of each sequence."""
        length = self.manifest.seq_length
        ids_BL = np.full((len(indices), length), self.manifest.special_tokens.pad, dtype=np.int64)
        masked_BL = np.zeros((len(indices), length), dtype=bool)
        shard_of = np.searchsorted(self.starts, indices, side="right") - 1
        for shard in np.unique(shard_of):
            rows = np.flatnonzero(shard_of == shard)
            items = indices[rows] - self.starts[shard]
            _gather_ids(self.ids[shard], items, rows, ids_BL)
            masked_BL[rows] = _gather_masks(self.masks[shard], items, mask_copies[rows], length)
        return ids_BL, masked_BL


def _gather_ids(file: IndexedFile, items: np.ndarray, rows: np.ndarray, out_BL: np.ndarray) -> None:
    """Copies the items into the rows of `out_BL`, as one gather from the memory map."""
    starts = file.offsets[items] // file.data.itemsize
    columns = np.arange(out_BL.shape[1])
    inside = columns < file.lengths[items][:, None]
    flat = np.minimum(starts[:, None] + columns, len(file.data) - 1)
    out_BL[rows] = np.where(inside, file.data[flat], out_BL[rows])


def _gather_masks(file: IndexedFile, items: np.ndarray, copies: np.ndarray, length: int) -> np.ndarray:
    """The bitmap of one copy of each item, unpacked to booleans [B, length]."""
    width = -(-length // 8)
    starts = file.offsets[items] + copies * width
    packed = file.data[starts[:, None] + np.arange(width)]
    return np.unpackbits(packed, axis=1, count=length, bitorder="little").astype(bool)


def open_shards(folder: Path) -> Shards:
    """The training shards of a build."""
    if not folder.exists():
        raise ConfigError(
            f"data: {folder} does not exist; fill it by `make quickstart` (a small corpus of its own), by"
            " `python data_prep/build_shards.py`, or name another folder with --data"
        )
    return Shards(folder)


def open_held_out(folder: Path) -> Shards | None:
    """The held-out shards of a build, where it set documents aside."""
    held_out = folder / "held_out"
    return Shards(held_out) if (held_out / "manifest.json").is_file() else None


class BatchPlan(NamedTuple):
    """How an optimizer step's sequences are spread: row = (micro-step x world + rank) x micro_batch_size + i."""

    batch_size: int
    micro_batch_size: int
    world_size: int
    rank: int

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step over all ranks."""
        return self.batch_size // self.micro_batch_size

    def rows(self, micro_step: int) -> np.ndarray:
        start = (micro_step * self.world_size + self.rank) * self.micro_batch_size
        return np.arange(start, start + self.micro_batch_size)


class TrainingBatches:
    """The micro-batches of every step, for one rank; the same samples a step whatever the plan."""

    def __init__(self, shards: Shards, plan: BatchPlan, seed: int) -> None:
        self.shards, self.plan, self.seed = shards, plan, seed

    def sequences(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Sequence index and epoch of every sample of the step, each int64 [batch_size]."""
        sample = np.arange(step * self.plan.batch_size, (step + 1) * self.plan.batch_size)
        epoch, place = np.divmod(sample, len(self.shards))
        index = np.empty_like(place)
        for value in np.unique(epoch):
            rows = epoch == value
            index[rows] = permuted(place[rows], len(self.shards), self.seed, int(value))
        return index, epoch

    def step(self, step: int) -> list[Batch]:
        """The micro-batches of a step that are this rank's, on the CPU."""
        index, epoch = self.sequences(step)
        plan = self.plan
        micro_steps = range(plan.micro_batches // plan.world_size)
        lengths = self.shards.lengths(index)
        counts = (np.sum(masked_count(lengths)) / plan.micro_batches, lengths.sum() / plan.micro_batches)
        parts = [plan.rows(micro_step) for micro_step in micro_steps]
        return [make_batch(self.shards, index[rows], epoch[rows], self.seed, counts) for rows in parts]

    def from_step(self, start: int, end: int) -> Iterator[list[Batch]]:
        """The steps start..end-1 in order, the next one read in the background while the caller works."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as reader:
            waiting = [reader.submit(self.step, step) for step in range(start, end)[:1]]
            for following in range(start + 1, end + 1):
                batches = waiting.pop().result()
                if following < end:
                    waiting.append(reader.submit(self.step, following))
                yield batches


def make_batch(
    shards: Shards, index: np.ndarray, epoch: np.ndarray, seed: int, counts: tuple[float, float] | None = None
) -> Batch:
    """The batch of these sequences; without `counts` the losses are means over the batch itself."""
    special, copies = shards.manifest.special_tokens, shards.manifest.mask_copies
    ids_BL, masked_BL = shards.read(index, epoch % copies)
    lengths = shards.lengths(index)
    slots = int(masked_count(shards.manifest.seq_length))
    positions_BK = np.argsort(~masked_BL, axis=1, kind="stable")[:, :slots]
    valid_BK = np.arange(slots) < masked_BL.sum(axis=1)[:, None]
    is_separator_BL = ids_BL == special.sep
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
        masked_count=float(masked),
        token_count=float(tokens),
    )


def held_out_batches(shards: Shards, sequences: int, plan: BatchPlan, seed: int) -> Iterator[Batch]:
    """Batches of one rank over the first `sequences` (wrapping round a smaller folder), whole micro-batches only."""
    group = plan.micro_batch_size * plan.world_size
    for micro_step in range(max(1, min(sequences, len(shards)) // group)):
        index = plan.rows(micro_step) % len(shards)
        yield make_batch(shards, index, np.zeros_like(index), seed)
