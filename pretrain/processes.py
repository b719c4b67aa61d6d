"""The processes of a job: joining them, telling them apart, and leaving together."""

import ctypes
import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from pretrain.launcher import adopt_slurm

COMMUNICATION_TIMEOUT = timedelta(minutes=30)
"""Longest wait in a collective of the job's first group (PyTorch's own for gloo); DeepSpeed's ignore it."""

KEPT_MEMORY = {-1: 2**31 - 1, -4: 0}
"""glibc's M_TRIM_THRESHOLD, bytes, and M_MMAP_MAX, blocks outside its heap (malloc.h, mallopt(3))."""


@dataclass(frozen=True)
class World:
    """One process among the processes of the job."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, value: Any = None) -> Any:
        """The first rank's `value` on every rank; anything that JSON can hold. Collective."""
        encoded = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=self.device)
        size = torch.tensor(encoded.numel(), device=self.device)
        dist.broadcast(size, src=0)
        if not self.is_first:
            encoded = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        dist.broadcast(encoded, src=0)
        return json.loads(bytes(encoded.tolist()))


def start_processes() -> World:
    """Joins the processes of the job: under `deepspeed`, `torchrun` or `srun`, or alone under plain `python`."""
    adopt_slurm()
    rank, world_size, local_rank = (int(os.environ.get(key, 0)) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        _share_cores()
        _keep_memory()
    if not dist.is_initialized():
        store, group_rank, group_size = _meet() if world_size else (HashStore(), 0, 1)  # alone: no port to agree on
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            timeout=COMMUNICATION_TIMEOUT,
            store=store,
            rank=group_rank,
            world_size=group_size,
        )
    return World(rank, max(1, world_size), local_rank, device)


def _meet() -> tuple[Store, int, int]:
    """The job's store, rank and world size, as the launcher's variables say."""
    store, rank, world_size = next(rendezvous("env://", timeout=COMMUNICATION_TIMEOUT))
    store.set_timeout(COMMUNICATION_TIMEOUT)
    return PrefixStore(attempt(), store), rank, world_size


def attempt() -> str:
    """Names this start of the job: torchrun's store outlives its restarts, with the addresses of ranks long gone."""
    return f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _share_cores() -> None:
    """Gives each rank of this machine its share of the cores; with more threads they would wait in turn."""
    if "OMP_NUM_THREADS" not in os.environ:
        local_ranks = int(os.environ.get("LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or 1)
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_ranks))


def _keep_memory() -> None:
    """Has glibc keep the memory that tensors leave and hand it out again.

    By default it returns every large block at once, and each step maps and clears its own anew: a tenth to a fifth of
    a small model's step (docs/speed.md). A C library without these settings is left as it is.
    """
    with suppress(AttributeError):
        for setting, value in KEPT_MEMORY.items():
            ctypes.CDLL(None).mallopt(setting, value)


def leave(code: int) -> NoReturn:
    """Ends this rank with `code` once every rank has come here.

    Among several ranks the interpreter's own shutdown sometimes aborts in the communication library and turns
    the job's code into a failure (1 in 10, measured), so it is skipped.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        raise SystemExit(code)
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
