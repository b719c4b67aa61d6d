"""pretrain/run.py in fp16 on a CPU, to test the loss scale; DeepSpeed and this project refuse it there."""

import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from foundation.command_line import run_command
from pretrain.engine import deepspeed_config, engine  # before DeepSpeed: the engine tells it the device
from pretrain.run import main
from pretrain.training.options import RunOptions
from tests.pretrain.engine.engine_worker import allow_fp16_on_cpu

resolve = deepspeed_config.resolve


def resolve_for_a_gpu(*values: Any, **settings: Any) -> deepspeed_config.EngineConfig:
    return resolve(*values, **(settings | {"device_type": "cuda"}))


if __name__ == "__main__":
    assert engine.torch.cuda.is_available() is False
    allow_fp16_on_cpu()
    deepspeed_config.resolve = resolve_for_a_gpu
    sys.exit(run_command(main, RunOptions, __doc__))
