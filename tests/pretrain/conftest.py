"""Small models, batches and shards for the tests of pre-training."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.data.batches import Batch
from pretrain.data.shards import Shards, open_shards
from pretrain.method.electra import Electra
from pretrain.method.registry import BUILT_IN, load_objective, objective_class
from pretrain.model import ops
from pretrain.model.config import ElectraModelConfig, ModelConfig, ModernModelConfig
from pretrain.planning.options import RunOptions
from pretrain.presets import PRESETS
from pretrain.runs.folder import RunDescription
from tests.conftest import REPOSITORY, free_port, needs
from tests.pretrain.runs.described import described
from tests.warm import Warm

SAMPLERS = (
    "samplers.power:HPLossPower",
    "samplers.floors:Uniform",
    "samplers.floors:Unigram",
    "samplers.oracle:Oracle",
)
OBJECTIVES = (*BUILT_IN, *map(load_objective, SAMPLERS))
"""Names of all objectives, the samplers loaded."""
VOCABULARY = 7  # [PAD] [UNK] [CLS] [SEP] [MASK] and two words: few enough for brute force
PAD, UNK, CLS, SEP, MASK = range(5)

SMALL_MODEL = ElectraModelConfig(
    layers=2,
    hidden_size=16,
    heads=2,
    intermediate_size=32,
    embedding_size=12,
    generator_hidden_size=8,
    max_positions=16,
    dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.3,  # large, so that distributions and losses differ between positions
)
MODERN = ModernModelConfig(
    layers=3,
    hidden_size=16,
    heads=2,
    intermediate_size=32,
    embedding_size=16,
    generator_hidden_size=8,
    max_positions=16,
    window=4,
    global_theta=20_000.0,
    dropout=0.0,
    initializer_range=0.3,
)
SHARING = {name: SMALL_MODEL.model_copy(update={"embedding_sharing": name}) for name in ("es", "nes", "gdes")}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where the test makes its tensors: Triton's kernels are interpreted on a CPU and compiled for a GPU."""
    found = torch.device(request.param)
    if found.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if found.type == "cuda" and os.environ["TRITON_INTERPRET"] != "0":
        pytest.skip("needs compiled kernels: set TRITON_INTERPRET=0")
    with found:
        yield found


PLAIN_OPS = {name: form for name, form in vars(ops).items() if isfunction(form)}


@pytest.fixture
def plain_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations as written, even if an engine in this process has replaced some; as they were again after the test."""
    for name, form in PLAIN_OPS.items():
        monkeypatch.setattr(ops, name, form)


@pytest.fixture
def batch() -> Batch:
    """Three sequences of 10, 8 and 5 tokens with 2, 2 and 1 masked."""
    generator = torch.Generator().manual_seed(3)
    ids_BL = torch.randint(5, VOCABULARY, (3, 10), generator=generator)
    lengths = torch.tensor([10, 8, 5])
    visible_BL = torch.arange(10) < lengths[:, None]
    ids_BL = torch.where(visible_BL, ids_BL, PAD)
    ids_BL[:, 0] = CLS
    ids_BL[torch.arange(3), lengths - 1] = SEP
    return Batch(
        input_ids_BL=ids_BL,
        attention_mask_BL=visible_BL,
        token_type_ids_BL=torch.zeros_like(ids_BL),
        masked_positions_BK=torch.tensor([[2, 5], [1, 6], [3, 0]]),
        masked_valid_BK=torch.tensor([[True, True], [True, True], [True, False]]),
        uniforms_BK=torch.rand(3, 2, generator=generator),
        keep_uniforms_BK=torch.rand(3, 2, generator=generator),
        masked_count=5.0,
        token_count=23.0,
    )


def new_model(
    name: str = "hp_loss", model: ModelConfig = SMALL_MODEL, vocabulary: int = VOCABULARY, **switches: object
) -> Any:
    """An untrained model for an objective."""
    trained = objective_class(name)
    return trained(model, trained.Config.from_values(switches), vocabulary, MASK)


@pytest.fixture
def make_electra() -> Callable[..., Electra]:
    """Builds models with the seven-token vocabulary; keyword arguments are the objective's switches."""

    def make(**objective: Any) -> Electra:
        torch.manual_seed(0)
        model = new_model(**objective)
        if hasattr(model, "sampler_transform"):  # away from the initial weights, where p_S = p_G would hide mistakes
            torch.nn.init.normal_(model.sampler_transform.LayerNorm.weight, std=1.0)
            for bias in model.sampler_scores.parameters():
                torch.nn.init.normal_(bias, std=0.5)
        return model

    return make


@pytest.fixture(scope="session")
def shards(shards_folder: Path) -> Shards:
    """The shards of `shards_folder`, opened."""
    return open_shards(shards_folder)


@pytest.fixture
def description(shards: Shards) -> RunDescription:
    """A run of the preset `tiny` on these shards."""
    return described(PRESETS["tiny"], shards)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real mounted file system of 1 MB."""
    with mounted(tmp_path / "disk", "1m") as disk:
        yield disk


@contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    """Mounts a file system of this size in memory; skips the test if the system does not allow it."""
    needs("mount", namespaces=("mount",))
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
    subprocess.run(["mount", *options, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)  # lazy: a failed test may hold a file open


def fill(disk: Path) -> Path:
    """Writes a file that leaves no free byte."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    return path


@pytest.fixture(scope="session")
def launch() -> Callable[..., subprocess.Popen[str] | Warm]:
    """Starts a script in its own session: with the real `deepspeed` and this many ranks, or as one process for 0."""

    def start(ranks: int, *arguments: str | Path) -> subprocess.Popen[str] | Warm:
        if not ranks and arguments[0] != "pretrain/supervise.py":  # which needs no PyTorch
            return Warm(*arguments)
        deepspeed = [
            str(Path(sys.executable).with_name("deepspeed")),
            f"--num_gpus={ranks}",
            f"--master_port={free_port()}",
        ]
        return subprocess.Popen(
            [*(deepspeed if ranks else [sys.executable]), *map(str, arguments)],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start


def options(shards: Path, output: Path, **changes: object) -> RunOptions:
    return RunOptions.from_values({"preset": "tiny", "data": (shards,), "output": output, **changes})
