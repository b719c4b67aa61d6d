"""The processes of a job: joining the process group, identifying ranks, and exiting together."""

import atexit
import ipaddress
import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from electra_sampler.foundation.command_line import end_here
from electra_sampler.foundation.config import ConfigError, explained, refuse
from electra_sampler.foundation.machine import cores, keep_freed_memory
from electra_sampler.foundation.progress import Made, waited_for
from pretrain.job.launcher import adopt_slurm, missing_tasks, number_of

COMMUNICATION_TIMEOUT = timedelta(minutes=30)
"""Timeout of collectives in the job's first group (PyTorch's default for gloo); DeepSpeed's own groups ignore it."""
BACKLOG = 4096
"""Pending connections that the store's socket accepts (PyTorch's value for its store)."""


@dataclass(frozen=True)
class World:
    """One process's place in the job."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, value: Any = None) -> Any:
        """Broadcasts the first rank's JSON-serializable `value`; returns it on every rank. Collective."""
        encoded = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=self.device)
        size = torch.tensor(encoded.numel(), device=self.device)
        dist.broadcast(size, src=0)
        if not self.is_first:
            encoded = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        dist.broadcast(encoded, src=0)
        return json.loads(bytes(encoded.tolist()))

    def of_ranks(self, value: float) -> list[float]:
        """Returns the value of every rank, by rank. Collective."""
        values = torch.zeros(self.world_size, dtype=torch.float64, device=self.device)
        values[self.rank] = value
        return self.sum_over_ranks(values).tolist()

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """Sums `tensor` over the ranks in place, and returns it. Collective."""
        dist.all_reduce(tensor)
        return tensor

    def on_first(self, make: Callable[[], Made]) -> Made | None:
        """Calls `make` on the first rank only; returns its result there, `None` on the others. Collective.

        Raises:
            ConfigError: on every rank, if `make` raised it.
        """
        made = None
        problems: tuple[str, ...] = ()
        if self.is_first:
            try:
                made = make()
            except ConfigError as error:
                problems = error.problems
        refuse(self.share(problems))
        return made


def start_processes() -> World:
    """Joins the job's process group, under `deepspeed`, `torchrun` or `srun`, or as a single process under `python`."""
    adopt_slurm()
    launched = number_of("WORLD_SIZE", "0")
    rank, world_size = number_of("RANK") if launched else 0, max(1, launched)
    if torch.cuda.is_available():
        # modulo: a site that binds a GPU to each task shows every task one device, number 0
        device = torch.device("cuda", number_of("LOCAL_RANK", "0") % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        share_cores(local_ranks())
    if not dist.is_initialized():
        store = waited_for(
            lambda: f"rank 0 at {os.environ.get('MASTER_ADDR', 'localhost')}",
            lambda: _meet(rank, world_size) if launched else HashStore(),  # a single process needs no port
        )
        waited_for(
            lambda: _absent(store.clone(), world_size),  # type: ignore[attr-defined]  # new in 2.9
            lambda: dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                timeout=COMMUNICATION_TIMEOUT,
                store=store,
                rank=rank,
                world_size=world_size,
            ),
        )
    return World(rank, world_size, device)


def share_cores(processes: int) -> None:
    """Sets this process, one of several on this machine, to its share of the cores, and to keep the memory it frees."""
    if "OMP_NUM_THREADS" not in os.environ:  # more threads would only queue
        torch.set_num_threads(max(1, cores() // processes))
    keep_freed_memory()


def _meet(rank: int, world_size: int) -> Store:
    """Connects to the job's key-value store, at the address in the launcher's environment variables.

    Rank 0 serves it; under torchrun, torchrun does. Keys get a prefix per start, since torchrun's store survives
    restarts and keeps the addresses of dead ranks.
    """
    if world_size == number_of("LOCAL_SIZE", "0"):  # all ranks on one host: no other host has to reach it
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    address, port = os.environ.get("MASTER_ADDR", "localhost"), number_of("MASTER_PORT")
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    listening = listen(address, port).detach() if serves else None
    known = TCPStore(address, port, world_size, serves, COMMUNICATION_TIMEOUT, False, master_listen_fd=listening)
    store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", known)
    store.set(f"rank {rank}", "started")
    return store


def _absent(store: Store, world_size: int) -> str:
    """Describes the ranks that have not come to the store yet, the first eight by name."""
    absent = [name for name in map("rank {}".format, range(world_size)) if not store.check([name])]
    if not absent:
        return "connections between the ranks, all of which have started"
    return "; ".join((f"{len(absent)} of {world_size} ranks: {', '.join(absent[:8])}", *missing_tasks()))


def listen(address: str, port: int) -> socket.socket:
    """Opens the listening socket of the job's store: on the interface with this IPv4 address, else on all interfaces.

    It is on all interfaces if `address` is a host name, which other hosts may resolve differently, or belongs to no
    local interface (NAT).

    Raises:
        ConfigError: the port is taken, or the system refuses it.
    """
    with suppress(ValueError, OSError):  # a port in use is taken on all interfaces too
        return socket.create_server((str(ipaddress.IPv4Address(address)), port), backlog=BACKLOG)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with explained(
        f"MASTER_PORT: got {port}, expected a free port",
        "another run may be using it: choose another with --master_port of deepspeed or torchrun, or by setting"
        " MASTER_PORT",
        (OSError, OverflowError),
    ):
        return socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=both)


def local_ranks() -> int:
    """Returns the number of the job's ranks on this machine."""
    return int(os.environ.get("LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or 1)


def leave(code: int) -> NoReturn:
    """Ends this process with exit code `code`, once every rank has called this function. Collective.

    Skips the interpreter's shutdown, which sometimes aborts in a thread of the communication library and so changes the
    exit code (measured: 1 in 10 with several ranks, 1 in 100 with a single process).
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
        end_here(code)
    if dist.is_initialized():
        atexit.register(end_here, code)
    raise SystemExit(code)
