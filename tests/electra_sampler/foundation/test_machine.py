"""Claims about the cores and the memory that a process is given."""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from electra_sampler.foundation import machine
from electra_sampler.foundation.machine import cores, memory
from tests.conftest import REPOSITORY

GIB = 2**30
VERSION_2 = "0::/pod/box\n"
VERSION_1 = "7:memory:/docker/0123\n4:cpuacct,cpu:/docker/0123\n1:name=systemd:/docker/0123\n0::/system\n"


@pytest.fixture(autouse=True)
def eight_cores_and_64_gib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without cgroups, until a test makes some."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 64 * GIB // 4096, "SC_PAGE_SIZE": 4096}.__getitem__)
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_CGROUPS", tmp_path / "own")


def make_cgroups(tmp_path: Path, own: str, files: Mapping[str, str | bytes]) -> None:
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def version_1(quota: str, period: str = "100000", folder: str = "") -> dict[str, str]:
    return {f"cpu/{folder}cpu.cfs_quota_us": quota, f"cpu/{folder}cpu.cfs_period_us": period}


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        (VERSION_2, {"pod/box/cpu.max": "200000 100000\n"}, 2),
        (VERSION_2, {"pod/box/cpu.max": "275000 100000\n"}, 2),  # rounded down: a third would wait for its turn
        (VERSION_2, {"pod/box/cpu.max": "50000 100000\n"}, 1),
        (VERSION_2, {"pod/box/cpu.max": "6400000 100000\n"}, 8),
        (VERSION_2, {"pod/box/cpu.max": "max 100000\n"}, 8),
        (VERSION_2, {"pod/box/cpu.max": "max 100000\n", "pod/cpu.max": "300000 100000\n"}, 3),
        (VERSION_2, {"pod/box/cpu.max": "600000 100000\n", "pod/cpu.max": "30000 10000\n"}, 3),
        (VERSION_2, {"pod/box/cpu.max": "200000 100000\n", "pod/cpu.max": "300000 100000\n"}, 2),
        (VERSION_2, {"cpu.max": "200000 100000\n"}, 2),  # a container's own cgroup is the topmost that it sees
        (VERSION_2, {"other/cpu.max": "200000 100000\n"}, 8),
        (VERSION_1, version_1("200000", folder="docker/0123/"), 2),
        (VERSION_1, version_1("-1", folder="docker/0123/") | version_1("150000", "50000"), 3),
        (VERSION_1, version_1("200000"), 2),
        (VERSION_1, version_1("-1"), 8),
    ],
    ids=str,
)
def test_cores_are_those_of_the_affinity_within_the_quota(
    own: str, files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    make_cgroups(tmp_path, own, files)
    assert cores() == expected


@pytest.mark.parametrize(
    ("own", "files", "gib"),
    [
        (VERSION_2, {"pod/box/memory.max": f"{2 * GIB}\n"}, 2),
        (VERSION_2, {"pod/box/memory.max": "max\n"}, 64),
        (VERSION_2, {"pod/box/memory.max": f"{4 * GIB}\n", "pod/memory.max": f"{3 * GIB}\n"}, 3),
        (VERSION_2, {"memory.max": f"{2 * GIB}\n"}, 2),
        (VERSION_2, {"pod/box/memory.max": f"{100 * GIB}\n"}, 64),
        (VERSION_1, {"memory/docker/0123/memory.limit_in_bytes": f"{5 * GIB}\n"}, 5),
        (VERSION_1, {"memory/memory.limit_in_bytes": f"{5 * GIB}\n"}, 5),
        (VERSION_1, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 64),
    ],
    ids=str,
)
def test_memory_is_the_machines_within_the_cgroups_limit(
    own: str, files: dict[str, str], gib: int, tmp_path: Path
) -> None:
    make_cgroups(tmp_path, own, files)
    assert memory() == gib * GIB


ODD = ("", "\n", "many\n", "1 2 3\n", "100000 0\n", "-1 100000\n", b"\xff\xfe 100000")


@pytest.mark.parametrize(
    ("own", "files"),
    [
        *((VERSION_2, {"pod/box/cpu.max": odd, "pod/box/memory.max": odd}) for odd in ODD),
        (VERSION_2, {"pod/box/cpu.max/below": "", "pod/box/memory.max/below": ""}),  # folders cannot be read
        *(
            (odd_list, {"../elsewhere/cpu.max": "100000 100000\n", "pod/box/cpu.max": "100000 100000\n"})
            for odd_list in ("", "odd\n", "1:cpu\n", "0::/../elsewhere\n", "0::/../../elsewhere\n", "0::\n", "\n::\n")
        ),
    ],
    ids=str,
)
def test_an_odd_or_unreadable_limit_or_list_of_cgroups_limits_nothing(
    own: str, files: dict[str, str | bytes], tmp_path: Path
) -> None:
    make_cgroups(tmp_path, own, files)
    assert (cores(), memory()) == (8, 64 * GIB)


def test_without_affinity_as_on_macos_the_system_counts_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


def printed(program: str) -> str:
    command = [
        sys.executable,
        "-c",
        f"import os, resource, sys; from electra_sampler.foundation.machine import *; {program}",
    ]
    return subprocess.check_output(command, cwd=REPOSITORY, text=True, timeout=60).strip()


@pytest.mark.skipif(sys.platform != "linux", reason="needs affinity")
def test_a_process_confined_to_a_core_has_one() -> None:
    assert printed("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(cores())") == "1"


def test_ulimit_bounds_the_memory() -> None:
    limit = 512 * 2**20
    assert printed(f"resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit})); print(memory())") == f"{limit}"


def test_counting_needs_no_heavy_package() -> None:
    assert printed("print(*sys.modules.keys() & {'torch', 'numpy', 'pydantic'})") == ""
