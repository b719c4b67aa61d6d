"""Worker of test_partitions.py: compares gathered states with DeepSpeed's own utilities, and counts their traffic.

torchrun --nproc_per_node 2 tests/pretrain/engine/partitions_worker.py RESULT.json
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[3])

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.traffic import bytes_sent
from pretrain.engine import partitions
from pretrain.engine.checkpoint import EngineState
from pretrain.engine.engine import MOMENTS, Engine
from pretrain.engine.optim import parameter_groups
from pretrain.job.processes import World, leave, start_processes
from tests.pretrain.engine.engine_worker import OPTIM, Runner, resolved_config, same_states, small_model

FILES = ("zero1_fp32", "zero2_bf16", "zero1_bf16_offload")
SMALL_PIECES = 202
"""Elements over all ranks: many pieces per group, the last one shorter."""
STEPS = 4


def engine_of(name: str, world: World, seed: int = 0, **zero: Any) -> Engine:
    """A new engine; `zero` are changes to that section of the file."""
    model = small_model(seed)
    config = resolved_config(name, world.world_size, zero_optimization=zero)
    return Engine(model, parameter_groups(model, OPTIM.weight_decay), config, world)


def figures_of(name: str, world: World) -> dict[str, Any]:
    """Saves after two steps, and loads the state into an engine with other weights."""
    engine, fresh = engine_of(name, world), engine_of(name, world, seed=1)
    Runner(engine).train(range(2))
    state, saving = with_traffic(engine, engine.full_state)
    _, loading = with_traffic(fresh, lambda: fresh.load_full_state(state if world.is_first else None))
    return {
        "parameters": sum(flat.numel() for flat in engine.backend.engine.optimizer.bit16_groups_flat),
        "bytes_per_weight": engine.dtype.itemsize,
        "saving": saving,
        "loading": loading,
        "aligned": over_ranks(all(parameter.data_ptr() % 16 == 0 for parameter in engine.module.parameters())),
        "in_order": list(state.weights) == [name for name, _ in engine.module.named_parameters()],
        "as_deepspeed": same_states(state, by_deepspeed(engine, state)),
        "loaded": same_states(state, fresh.full_state()),
        "rounded": rounds(state, fresh),
        "in_pieces": same_in_pieces(state, fresh),
    }


def same_in_pieces(state: EngineState, engine: Engine) -> bool:
    """True if saving and loading with many small collectives gives the same bits."""
    whole, partitions.AT_ONCE = partitions.AT_ONCE, SMALL_PIECES
    same = [same_states(state, engine.full_state())]
    Runner(engine).train(range(2, 3))
    engine.load_full_state(state if engine.world.is_first else None)
    partitions.AT_ONCE = whole
    return all((*same, same_states(state, engine.full_state())))


def other_layout(name: str, world: World, **zero: bool) -> dict[str, Any]:
    """Losses with another layout of the flat groups and with the usual one; the state is loaded into the latter."""
    engine, fresh = engine_of(name, world, **zero), engine_of(name, world, seed=1)
    losses = Runner(engine).train(range(STEPS))
    state = engine.full_state()
    fresh.load_full_state(state if world.is_first else None)
    return {
        "losses": losses,
        "usual": Runner(engine_of(name, world)).train(range(STEPS)),
        "loaded": same_states(state, fresh.full_state()),
        "rounded": rounds(state, fresh),
    }


def with_traffic(engine: Engine, work: Callable[[], Any]) -> tuple[Any, list[int]]:
    """The result of `work`, and the bytes sent by each rank."""
    engine.barrier()
    before = bytes_sent()
    result = work()
    engine.barrier()
    return result, over_ranks(bytes_sent() - before)


def over_ranks(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def by_deepspeed(engine: Engine, state: EngineState) -> EngineState:
    """The state gathered by DeepSpeed's utilities, with one all-reduce per tensor."""
    import deepspeed.utils as utilities

    def named(full: Callable[[nn.Parameter], Tensor]) -> dict[str, Tensor]:
        gathered = {name: full(parameter) for name, parameter in engine.module.named_parameters()}
        return gathered if engine.world.is_first else {}

    moments = {key: named(lambda p, key=key: utilities.safe_get_full_optimizer_state(p, key)) for key in MOMENTS}
    return EngineState(state.adam_steps, state.loss_scale, named(utilities.safe_get_full_fp32_param), moments)


def rounds(state: EngineState, engine: Engine) -> list[bool]:
    """True for each rank on which every weight of the module equals the rounded master weight."""
    same = []
    for name, parameter in engine.module.named_parameters():
        master = state.weights[name].clone() if engine.world.is_first else torch.empty(parameter.shape)
        dist.broadcast(master, src=0)
        same.append(torch.equal(parameter, master.to(parameter.dtype)))
    return over_ranks(all(same))


def main(result: Path) -> None:
    world = start_processes()
    figures = {name: figures_of(name, world) for name in FILES}
    figures["not aligned"] = other_layout("zero1_bf16", world, parameter_alignment=False)
    if world.is_first:
        result.write_text(json.dumps(figures))
    leave(0)


if __name__ == "__main__":
    main(Path(next(argument for argument in sys.argv[1:] if not argument.startswith("--"))))
