"""Claims about what is chosen by the hardware, other CPUs imitated, and about deterministic algorithms."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from electra_sampler.foundation import machine
from electra_sampler.foundation.config import ConfigError
from pretrain.data.batches import Batch
from pretrain.engine import hardware
from pretrain.engine.hardware import choose, compute_deterministically, file_of, product_speed, slow_precision
from tests.conftest import REPOSITORY
from tests.pretrain.conftest import new_model

CPU = torch.device("cpu")
A100, T4 = (8, 0), (7, 5)
WITH = {
    "avx512_bf16": "sse4_1 avx2 avx512bw avx512_bf16",
    "amx": "sse4_1 avx2 avx512bw avx512_bf16 amx_tile amx_bf16",
    "avx2": "sse4_1 avx2",
    "neon_bf16": "asimd bf16",
    "neon": "asimd",
}


def imitate(flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maker: str = "AuthenticAMD") -> None:
    """Lets this CPU have only these flags."""
    (tmp_path / "cpuinfo").write_text(f"vendor_id : {maker}\nflags : {flags}\n")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)


@pytest.mark.parametrize(
    ("maker", "cpu", "fast"),
    [
        ("AuthenticAMD", "avx512_bf16", "bf16"),
        ("AuthenticAMD", "avx2", "fp32"),
        ("GenuineIntel", "avx512_bf16", "fp32"),
        ("GenuineIntel", "amx", "bf16"),
        ("", "neon_bf16", "bf16"),
        ("", "neon", "fp32"),
    ],
)
def test_a_cpu_computes_in_bf16_only_if_that_is_faster(
    maker: str, cpu: str, fast: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitate(WITH[cpu], tmp_path, monkeypatch, maker)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    choice = choose(processes=2)
    assert choice.path.stem == f"zero1_{fast}" and choice.path.is_file()
    assert f"({cpu}) multiplies {fast} faster than" in choice.reason


@pytest.mark.parametrize(("capability", "file"), [(A100, "zero1_bf16"), (T4, "zero1_fp16")])
def test_a_gpu_without_bf16_computes_in_fp16(
    capability: tuple[int, int], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU is here: what PyTorch says of one is set."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: capability >= A100)
    assert choose(processes=1).path.stem == file


def test_one_process_in_fp32_needs_no_deepspeed_and_without_it_computes_in_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [file_of("fp32", processes).stem for processes in (1, 2)] == ["zero0_fp32", "zero1_fp32"]
    imitate(WITH["avx512_bf16"], tmp_path, monkeypatch)
    monkeypatch.setattr(hardware, "find_spec", lambda name: None)
    assert choose(processes=1)[:2] == (file_of("fp32", 1), "DeepSpeed is not installed")


def test_a_slow_precision_is_named_with_its_measured_ratio_and_the_faster_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured in a process that oneDNN keeps to AVX2, where bf16 is really emulated."""
    program = "from pretrain.engine import hardware; [print(hardware.slow_precision(p)) for p in ('bf16', 'fp32')]"
    limits = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, env=os.environ | limits, capture_output=True, text=True
    )
    slow, fast = done.stdout.splitlines()
    expected = "deepspeed_config: got bf16, in which this CPU (avx2) is slow: it multiplies "
    assert slow.startswith(expected), done.stderr
    assert slow.endswith(" times as fast in fp32; add --deepspeed_config ds_configs/zero1_fp32.json")
    assert fast == "None"
    imitate(WITH["avx512_bf16"], tmp_path, monkeypatch)
    assert slow_precision("bf16") is None


def test_the_measured_speed_is_plausible_and_leaves_the_random_state_unchanged() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    speed = product_speed("fp32", CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert 1e9 < speed < 1e14, version("torch")  # plausible for a CPU


@pytest.fixture
def as_before() -> Iterator[None]:
    uninitialized = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = uninitialized  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn


def test_an_operation_without_a_deterministic_form_is_refused(as_before: None) -> None:
    values, places = torch.zeros(3), torch.tensor([0, 0])
    values.put_(places, torch.ones(2))
    compute_deterministically({})
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        values.put_(places, torch.ones(2))


@pytest.mark.parametrize(
    ("chosen", "cublas", "nccl"),
    [({}, ":4096:8", "^NVLS,NVLSTree"), ({"CUBLAS_WORKSPACE_CONFIG": ":16:8", "NCCL_ALGO": "Ring"}, ":16:8", "Ring")],
)
def test_cublas_and_nccl_get_settings_that_may_be_chosen_among_the_deterministic_ones(
    chosen: dict[str, str], cublas: str, nccl: str, as_before: None
) -> None:
    environment = dict(chosen)
    compute_deterministically(environment)
    assert environment == {"CUBLAS_WORKSPACE_CONFIG": cublas, "NCCL_ALGO": nccl}


@pytest.mark.parametrize(
    ("name", "value", "library"),
    [("CUBLAS_WORKSPACE_CONFIG", ":0:0", "cuBLAS"), ("NCCL_ALGO", "NVLS", "NCCL"), ("NCCL_ALGO", "Tree", "NCCL")],
)
def test_another_setting_is_one_clear_error(name: str, value: str, library: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: got '{re.escape(value)}' .*expected .*{library} is not .*unset"):
        compute_deterministically({name: value})
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("objective", ["hp_loss", "hp_dist", "electra"])
def test_on_a_cpu_no_bit_changes_and_the_mode_stays_on(objective: str, batch: Batch, as_before: None) -> None:
    gradients = []
    for deterministic in (False, True):
        if deterministic:
            compute_deterministically({})
        torch.manual_seed(0)
        model = new_model(objective)
        model(batch).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert torch.are_deterministic_algorithms_enabled()
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
