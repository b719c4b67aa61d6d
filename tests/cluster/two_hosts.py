"""Simulates two hosts on this machine: namespaces on a virtual switch, each with an sshd, and Slurm if wanted.

Each host has its own network, processes, host name and mounts, so pdsh, ssh, `hostname -I` and Slurm behave as between
machines. Files and Python are shared, as on a cluster's network file system. One process keeps each namespace until its
standard input closes, so the kernel removes everything when the program ends, even if it is killed.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import REPOSITORY, SEARCH_PATH, needs, unshare

ADDRESSES = {"node1": "10.77.0.11", "node2": "10.77.0.12"}
NAMESPACES = ("net", "mount", "pid", "uts")
"""What each host has for itself."""
INSTRUCTIONS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
IMITATED = {name: os.environ[name] for name in INSTRUCTIONS if name in os.environ}
"""Environment by which tests imitate a CPU with fewer instructions; the hosts are of that kind too."""

HOST = """
set -e
hostname {name}
mount -t tmpfs none /run
mkdir /run/sshd /run/munge
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/ssh_config /etc/ssh/ssh_config
ip link set lo up
echo ready
read -r connected
$(command -v sshd) -f {folder}/sshd_config -o ListenAddress={address}
echo ready
cat
"""
TC, PORT = ("tc", "qdisc"), ("dev", "eth0", "root")
SWITCH = "ip link add switch type bridge && ip link set switch up && echo ready && cat"

SSHD_CONFIG = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTHONPATH={repository}
"""
SSH_CONFIG = """
IdentityFile {folder}/key
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""


class Namespace:
    """A namespace, kept by a process that ends when its standard input closes."""

    def __init__(self, script: str, *kinds: str) -> None:
        self._keeper = subprocess.Popen(
            [*unshare(*kinds), "bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.wait_until_ready()
        children = Path(f"/proc/{self._keeper.pid}/task/{self._keeper.pid}/children").read_text().split()
        self.pid = int(children[0]) if "pid" in kinds else self._keeper.pid
        """PID of the process inside the namespace, as seen from outside."""

    def wait_until_ready(self) -> None:
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == "ready\n"

    def proceed(self) -> None:
        assert self._keeper.stdin is not None
        print(file=self._keeper.stdin, flush=True)
        self.wait_until_ready()

    def close(self) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()


class TwoHosts:
    """The hosts node1 and node2, running and connected by ssh as root."""

    def __init__(self, folder: Path) -> None:
        needs("ip", "tc", "ssh", "sshd", "pdsh", namespaces=NAMESPACES)
        self.folder = folder
        self._write_files()
        self._switch = Namespace(SWITCH, "net")
        self.hosts: dict[str, Namespace] = {}
        for name, address in ADDRESSES.items():
            self.hosts[name] = Namespace(HOST.format(name=name, address=address, folder=folder), *NAMESPACES)
            self._connect(name, address)
            self.hosts[name].proceed()

    def _write_files(self) -> None:
        for key in ("key", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)], check=True)
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in ADDRESSES.items())]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        (self.folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=self.folder, repository=REPOSITORY))
        (self.folder / "ssh_config").write_text(SSH_CONFIG.format(folder=self.folder))
        (self.folder / "hostfile").write_text("".join(f"{name} slots=1\n" for name in ADDRESSES))

    @property
    def hostfile(self) -> Path:
        """Path of a hostfile with one slot per host."""
        return self.folder / "hostfile"

    def _connect(self, name: str, address: str) -> None:
        host = self.hosts[name].pid
        self._in_switch(f"ip link add {name} type veth peer name eth0 netns {host}")
        self._in_switch(f"ip link set {name} master switch")
        self.mend(name)
        for command in (f"ip address add {address}/24 dev eth0", "ip link set eth0 up"):
            subprocess.run([*_enter(host, "--net"), *command.split()], check=True)

    def _in_switch(self, command: str) -> None:
        subprocess.run([*_enter(self._switch.pid, "--net"), *command.split()], check=True)

    def cut(self, name: str) -> None:
        """Disconnects a host from the network, like a pulled cable."""
        self._in_switch(f"ip link set {name} down")

    def mend(self, name: str) -> None:
        self._in_switch(f"ip link set {name} up")

    def throttle(self, name: str, rate: str) -> None:
        """Limits a host's sending rate, given in tc's notation, until `unthrottle`."""
        limit = ("tbf", "rate", rate, "burst", "1mbit", "latency", "400ms")
        subprocess.run([*_enter(self.hosts[name].pid, "--net"), *TC, "replace", *PORT, *limit], check=True)

    def unthrottle(self, name: str) -> None:
        subprocess.run([*_enter(self.hosts[name].pid, "--net"), *TC, "del", *PORT], check=True)

    def start(
        self, command: Sequence[object], folder: Path, host: str = "node1", **environment: str
    ) -> subprocess.Popen[str]:
        """Starts a command on a host in a new session, with the environment of a fresh login.

        The folder is entered inside the namespace. If nsenter entered it, it would belong to the outer mounts, and
        renaming files across mounts fails.
        """
        enter = _enter(self.hosts[host].pid, "--net", "--pid", "--mount", "--uts")
        if IMITATED:  # DeepSpeed hands these on to the other hosts
            (folder / ".deepspeed_env").write_text("".join(f"{name}={value}\n" for name, value in IMITATED.items()))
        return subprocess.Popen(
            [*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(folder), *map(str, command)],
            env={"PATH": SEARCH_PATH, "HOME": os.environ["HOME"], "PYTHONPATH": str(REPOSITORY)}
            | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
            | IMITATED
            | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: Sequence[object], folder: Path, host: str = "node1", **environment: str) -> str:
        """Runs a command that must exit with 0; returns its output."""
        process = self.start(command, folder, host, **environment)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        return output

    def processes(self, name: str, containing: str) -> list[int]:
        """Outer PIDs of a host's running processes whose command line contains this text."""
        wanted = Path(f"/proc/{self.hosts[name].pid}/ns/pid").readlink()
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is(path, wanted, containing)]

    def close(self) -> None:
        for namespace in (*self.hosts.values(), self._switch):
            namespace.close()


def _enter(pid: int, *kinds: str) -> list[str]:
    return ["nsenter", f"--target={pid}", *kinds]


def _is(process: Path, namespace: Path, text: str) -> bool:
    try:
        inside = (process / "ns" / "pid").readlink() == namespace
        return inside and text in (process / "cmdline").read_text().replace("\0", " ")
    except OSError:  # it has ended meanwhile; a zombie has no namespace
        return False


# Requeued jobs wait for 5 s instead of two minutes (AuthInfo). Dead nodes are down after 15 s instead of 300. A job may
# exceed its limit by a minute, because limits are whole minutes and Slurm sends its warning up to 30 s early.
SLURM_CONF = """
ClusterName=tests
SlurmctldHost=node1
AuthType=auth/munge
AuthInfo=cred_expire=5
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdTimeout=15
OverTimeLimit=1
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName=DEFAULT RealMemory=2000
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A Slurm cluster on the two hosts, with its controller on node1."""

    def __init__(self, hosts: TwoHosts) -> None:
        needs("munged", "slurmctld", "slurmd", "srun")
        self.hosts, self.folder = hosts, hosts.folder / "slurm"
        for folder in ("state", *ADDRESSES):
            (self.folder / folder).mkdir(parents=True)
        nodes = "\n".join(f"NodeName={name} NodeAddr={address} CPUs=1" for name, address in ADDRESSES.items())
        (self.folder / "slurm.conf").write_text(SLURM_CONF.format(folder=self.folder, nodes=nodes))
        unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        (self.folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v{2 if unified else 1}\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for name in ADDRESSES:
            log = [f"--log-file={self.folder}/munged.{name}.log", f"--seed-file={self.folder}/seed.{name}"]
            self._start_daemon(name, "munged", "--force", f"--key-file={key}", *log)
        self._start_daemon("node1", "slurmctld")
        for name in ADDRESSES:
            self.start_slurmd(name)
        deadline = time.monotonic() + 60
        while self.run("sinfo", "--noheader", "--states=idle", "--format=%D").strip() != "2":
            assert time.monotonic() < deadline, self.run("scontrol", "show", "nodes")
            time.sleep(0.5)

    @property
    def environment(self) -> dict[str, str]:
        root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")  # which the tests are
        return {"SLURM_CONF": str(self.folder / "slurm.conf")} | dict.fromkeys(root, "1")

    def start_slurmd(self, host: str) -> None:
        self._start_daemon(host, "slurmd", "-N", host)

    def _start_daemon(self, host: str, *command: str) -> None:
        # A daemon would keep our output open, so it gets its own.
        quiet = ["sh", "-c", '"$@" </dev/null >/dev/null 2>&1', "sh"]
        self.hosts.run([*quiet, *command], self.folder, host, **self.environment)

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Runs a Slurm command on node1; returns its output."""
        return self.hosts.run(command, folder or self.folder, **self.environment)
