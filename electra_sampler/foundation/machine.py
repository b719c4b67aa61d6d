"""Cores, memory and instruction set that a process may use on this machine."""

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
"""Where Linux shows cgroups: version 2 in this folder, version 1 in a folder below for each controller."""
OWN_CGROUPS = Path("/proc/self/cgroup")
CPUINFO = Path("/proc/cpuinfo")
X86 = {"sse41": "sse4_1", "avx2": "avx2", "avx512": "avx512bw", "avx512_bf16": "avx512_bf16", "amx": "amx_bf16"}
"""Instruction sets of x86, the widest last, each with the flag in /proc/cpuinfo that shows it."""
ARM = {"neon": "asimd", "neon_bf16": "bf16"}
MULTIPLY_BF16 = ("avx512_bf16", "amx", "neon_bf16")
ONEDNN_LIMITS = {
    **dict.fromkeys(("SSE41", "AVX"), "sse41"),
    **dict.fromkeys(("AVX2", "AVX2_VNNI", "AVX2_VNNI_2"), "avx2"),
    **dict.fromkeys(("AVX512_CORE", "AVX512_CORE_VNNI"), "avx512"),
    **dict.fromkeys(("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512"), "avx512_bf16"),
}
"""The widest set that oneDNN, PyTorch's library of matrix products, uses for each value of ONEDNN_MAX_CPU_ISA."""


def cores() -> int:
    """Number of cores that this process can keep busy: its affinity, capped by its cgroup's quota; at least 1."""
    # macOS has no affinity
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([count, *_quotas()])))


def memory() -> int:
    """Bytes that this process can use: physical memory, capped by its cgroup's limit and by `ulimit -v`."""
    found = (_text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes") for folder in _cgroups("memory"))
    limits = [int(text) for text in found if text.strip().isdecimal()]  # or "max"
    ulimit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if ulimit != resource.RLIM_INFINITY:
        limits.append(ulimit)
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits])


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for later tensors; does nothing with another C library.

    By default it returns large blocks to the system at once, and each step has to map and clear new ones, which takes a
    tenth to a fifth of a small model's step (docs/evidence/speed.md).
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD, in bytes
        mallopt(-4, 0)  # M_MMAP_MAX: no block outside the heap


def instructions() -> str:
    """The widest instruction set that matrix products may use: a key of `X86` or `ARM`, or `unknown` if the system does
    not tell.

    ONEDNN_MAX_CPU_ISA can narrow it, so that a newer CPU behaves like an older one.
    """
    flags = next((line.split() for line in _text(CPUINFO).splitlines() if line.startswith(("flags", "Features"))), [])
    found = [name for name, flag in (ARM | X86).items() if flag in flags] or ["unknown"]
    limit = ONEDNN_LIMITS.get(os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper())
    return limit if limit in found else found[-1]


def is_intel() -> bool:
    """Whether Intel made the CPU: on others MKL, PyTorch's library of fp32 products, does without AVX-512."""
    return "GenuineIntel" in _text(CPUINFO)


def bf16_is_faster() -> bool:
    """Whether the CPU multiplies bf16 faster than fp32; without instructions for it PyTorch emulates it, many times
    slower.

    Intel's AVX-512 is not: a Xeon of 2023 reaches 167 GFLOP/s in bf16 and 329 in fp32. Its AMX is.
    """
    return instructions() in (("amx",) if is_intel() else MULTIPLY_BF16)


def _quotas() -> Iterator[float]:
    """Yields the quotas of processor time, in cores, of this process's cgroup and the cgroups above it."""
    for folder in _cgroups("cpu"):
        version_1 = f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}"
        match (_text(folder / "cpu.max") or version_1).split():
            case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period):  # or "max", or -1
                yield int(quota) / int(period)


def _cgroups(controller: str) -> Iterator[Path]:
    """Yields the folders of this process's cgroup and its ancestors, each of which may set a limit.

    In a container the named folder is often missing, because the container sees its own cgroup as the topmost one.
    """
    for line in _text(OWN_CGROUPS).splitlines():  # such as 0::/user.slice, or 4:cpu,cpuacct:/docker/0123
        match line.split(":", 2):
            case [_, "", path]:
                top = CGROUPS
            case [_, controllers, path] if controller in controllers.split(","):
                top = CGROUPS / controller
            case _:
                continue
        own = top / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top) and ".." not in folder.parts)


def _text(path: Path) -> str:
    """Returns the text of a system file; empty if the file is missing, unreadable or not text."""
    with suppress(OSError, ValueError):
        return path.read_text()
    return ""
