"""Claims about what is chosen by the hardware: precision, its file, operations; other CPUs are imitated."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from electra_sampler.foundation import machine
from pretrain.engine import hardware
from pretrain.engine.hardware import choose, file_of, product_speed, slow_precision
from tests.conftest import REPOSITORY

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
