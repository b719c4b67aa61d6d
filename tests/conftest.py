"""Fixtures shared by all tests."""

import gc
import os
import pydoc_data.topics
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
# Triton's kernels run on CPUs too, interpreted; this must be set before anything imports Triton.
os.environ.setdefault("TRITON_INTERPRET", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # several keep all cores busy, where a thread that waits for others waits long
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background lets them, and all that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[1]
# Commands that tests start must import this checkout, even if another one is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))

SEARCH_PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
PACKAGES = {
    **{"ip": "iproute2", "tc": "iproute2", "pdsh": "pdsh", "ssh": "openssh-client", "sshd": "openssh-server"},
    **{"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"},
    **{"mpirun": "openmpi-bin", "git": "git", "g++": "g++", "unshare": "util-linux", "mount": "mount"},
    **{"chromium": "chromium", "node": "nodejs", "npm": "npm"},
}
"""Debian's package of each program that some tests start and a machine may lack."""


def needs(*programs: str, namespaces: tuple[str, ...] = ()) -> None:
    """Skips a test that starts programs which this machine lacks, or makes namespaces which it forbids."""
    started = {*programs, *(["unshare"] if namespaces else [])}
    if lacking := {PACKAGES[program] for program in started if not shutil.which(program, path=SEARCH_PATH)}:
        pytest.skip(f"needs {' '.join(sorted(lacking))}")
    if namespaces and subprocess.run([*unshare(*namespaces), "true"], capture_output=True).returncode:
        pytest.skip("needs root, on a system that lets it make namespaces")


def unshare(*kinds: str) -> list[str]:
    """The command before one that runs in namespaces of these kinds."""
    return ["unshare", *(f"--{kind}" for kind in kinds), *(["--fork", "--mount-proc"] if "pid" in kinds else [])]


def pytest_collection_finish() -> None:
    gc.freeze()  # or each full collection visits all that was imported


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says in at most five lines what the skipped tests lacked."""
    reports = terminalreporter.getreports("skipped")
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    for reason, count in (shown := reasons.most_common(None if len(reasons) <= 5 else 4)):
        terminalreporter.write_line(f"skipped {count:4}  {reason}")
    if rest := reasons.total() - sum(count for _, count in shown):
        terminalreporter.write_line(
            f"skipped {rest:4}  for {len(reasons) - len(shown)} other reasons: PYTEST=-rs names them"
        )


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real text, GLUE and SQuAD files; tests that need it are skipped if it does not exist."""
    folder = Path(os.environ.get("ELECTRA_SAMPLER_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; set ELECTRA_SAMPLER_DATA to its folder")
    return folder


def free_port() -> int:
    """A port on this machine that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


BLOCKED = """
import sys
from importlib.machinery import PathFinder

class WithoutSome(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {packages} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutSome
"""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Folder for a run, not made yet."""
    return tmp_path / "run"


@pytest.fixture(scope="session")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a machine on which DeepSpeed, MPI and megatron-core are not installed."""
    folder = tmp_path_factory.mktemp("laptop")
    (folder / "sitecustomize.py").write_text(BLOCKED.format(packages=("deepspeed", "mpi4py", "megatron")))
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def shards_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of Python's documentation: 300 word pieces, length 32, two shards, a tenth held out."""
    from data_prep.build_shards import BuildOptions
    from data_prep.build_shards import main as build_shards
    from data_prep.train_vocab import VocabularyOptions
    from data_prep.train_vocab import main as train_vocab

    folder = tmp_path_factory.mktemp("shards")
    text = folder / "raw"
    text.mkdir()
    topics = sorted(pydoc_data.topics.topics.items())
    for number, part in enumerate((topics[::2], topics[1::2])):
        (text / f"{number}.txt").write_text("\n\n".join(" ".join(topic.split())[:3000] for _, topic in part))
    train_vocab(VocabularyOptions.from_values({"input": (text,), "output": folder / "vocab", "size": 300}))
    given = {"input": (text,), "output": folder / "shards", "vocab": str(folder / "vocab"), "workers": 1}
    build_shards(BuildOptions.from_values(given | {"seq_length": 32, "held_out": 0.1, "shard_mb": 0.1}))
    return folder / "shards"


def typed(command: str, folder: Path, **environment: str) -> None:
    """Runs a command typed in this folder, in a shell whose `python` is this one."""
    own = os.environ | {"PATH": SEARCH_PATH} | environment
    done = subprocess.run(command, shell=True, cwd=folder, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def unread(path: Path) -> tuple[int, ...]:
    """What `lstat` says, without the time of access, which reading changes."""
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def modules(*packages: str) -> list[Path]:
    paths = (path for package in packages for path in (REPOSITORY / package).rglob("*.py"))
    return sorted(path.relative_to(REPOSITORY) for path in paths)


def flip_bit(path: Path, place: int | None = None, bit: int = 1) -> None:
    """Flips a bit in one byte of a file, by default the middle one."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= bit
    path.write_bytes(content)
