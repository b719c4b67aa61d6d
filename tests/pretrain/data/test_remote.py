"""Claims about shards behind URLs: read as from disk, in a bounded cache, through faults and outages."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import boto3
import numpy as np
import pytest
from moto.server import ThreadedMotoServer

import pretrain.data.shards
from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from data_prep.manifest import load_manifest, save_manifest
from electra_sampler.foundation import progress
from electra_sampler.foundation.config import ConfigError, LocalProblem
from electra_sampler.foundation.files import file_sha256
from pretrain.data import remote
from pretrain.data.batches import BatchPlan, TrainingBatches
from pretrain.data.remote import ShardCache, cache_folder, remote_folder
from pretrain.data.shards import Shards, open_held_out, open_shards
from tests.pretrain.data.range_server import Fault, RangeServer, serving
from tests.pretrain.whole_runs import Launch, finished, losses, run_arguments

WINDOW = 3
PLAN = BatchPlan(24, 24, 1, 0)


@pytest.fixture(scope="module")
def many(shards_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About forty shards of about fifty sequences."""
    root = tmp_path_factory.mktemp("many")
    sizes = {"seq_length": 32, "held_out": 0.1, "shard_mb": 0.002, "workers": 1}
    given = {"input": (shards_folder.parent / "raw",), "vocab": str(shards_folder / "tokenizer")}
    build_shards(BuildOptions.from_values({"output": root / "shards", **given, **sizes}))
    assert len(load_manifest(root / "shards").shards) >= 8 * WINDOW
    return root / "shards"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardCache:
    """An empty cache, as in a new process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remote_folder.cache_clear()
    empty = ShardCache()
    monkeypatch.setattr(pretrain.data.shards, "CACHE", empty)
    return empty


@pytest.fixture
def server(many: Path) -> Iterator[RangeServer]:
    with serving(many, delay=0.002) as server:
        yield server


@pytest.fixture
def bucket(many: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The folder in a bucket of a real S3 server on loopback."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in (keys | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}).items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="texts")
    for path in many.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "texts", f"wiki/{path.relative_to(many)}")
    yield "s3://texts/wiki"
    server.stop()


def read(folder: Path, steps: int, window: int = WINDOW) -> list[np.ndarray]:
    """All tensors of the first steps' batches."""
    batches = TrainingBatches(open_shards(folder, window=window), PLAN, seed=3)
    parts = (part for step in batches.from_step(0, steps) for batch in step for part in batch[:7])
    return [np.asarray(part) for part in parts]


def at_most(calls: int) -> Callable[[str], None]:
    """For `on_wait`: fails a test that waits longer."""
    left = iter(range(calls))
    return lambda what: pytest.fail(f"{what} forever") if next(left, None) is None else None


def equal(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    return all(map(np.array_equal, ours, theirs)) and len(ours) == len(theirs)


def stored() -> int:
    """Bytes of complete and partial copies."""
    total = 0
    for path in cache_folder().glob("*/shard-*"):
        with suppress(FileNotFoundError):  # renamed or removed meanwhile
            total += path.stat().st_size
    return total


def test_batches_from_http_equal_those_from_disk_with_a_cache_of_a_quarter(
    many: Path, server: RangeServer, cache: ShardCache
) -> None:
    cache.limit = sum(shard.size for shard in load_manifest(many).shards) // 4
    steps, most = 2 * len(Shards(many)) // PLAN.batch_size, 0
    batches = TrainingBatches(open_shards(Path(server.url), window=WINDOW), PLAN, seed=3)
    assert not [*batches.shards.problems(cache.limit / 1e9)]
    local = TrainingBatches(open_shards(many, window=WINDOW), PLAN, seed=3)
    for step in range(steps):
        assert all(map(np.array_equal, batches.step(step)[0][:7], local.step(step)[0][:7]))
        most = max(most, stored())
    assert most <= cache.limit
    fetched = [count for name, count in server.requests.items() if name.endswith(".mask.bin")]
    assert max(fetched) <= 2, "in two epochs, each shard is fetched at most twice"


def test_batches_from_s3_equal_those_from_disk_with_keys_from_the_environment_or_in_the_url(
    many: Path, bucket: str, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert equal(read(Path(bucket), 12), read(many, 12))
    remote_folder.cache_clear()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    url = bucket.replace("://", "://AKIATEST:se/cr+et@")
    assert equal(read(Path(url), 2), read(many, 2))
    assert open_shards(Path(url)).names == (bucket,)


def test_a_full_permutation_of_remote_shards_equals_that_of_local_ones_and_must_fit_the_cache(
    many: Path, server: RangeServer, cache: ShardCache
) -> None:
    assert equal(read(Path(server.url), 4, window=0), read(many, 4, window=0))
    (problem,) = open_shards(Path(server.url)).problems(1e-5)
    assert re.search(r"^order: got 'full', .* --set order=windows, or --cache_gb 1$", problem)
    (problem,) = open_shards(Path(server.url), window=WINDOW).problems(1e-5)
    assert re.search(r"^cache_gb: got 1e-05, but two windows of 3 shards .* --set window lower", problem)


def test_a_cache_whose_server_is_gone_holds_up_no_other_cache(
    many: Path, server: RangeServer, cache: ShardCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its retries hold the lock of the folder that it was opened with, even if `XDG_CACHE_HOME` changes."""
    with serving(many, delay=0.0) as gone:
        stuck = remote.Copy(remote_folder(gone.url), load_manifest(many).shards[0])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    ShardCache().expect([stuck])
    lock = stuck.folder.local.parent / remote.LOCK
    while not (lock.exists() and lock.stat().st_size):  # reading would release it
        time.sleep(0.01)
    cache.on_wait = at_most(30)
    assert equal(read(Path(server.url), 4), read(many, 4))


def test_held_out_shards_are_fetched_too_and_need_not_exist(many: Path, server: RangeServer, cache: ShardCache) -> None:
    ours, theirs = open_held_out(Path(server.url)), open_held_out(many)
    assert ours and theirs
    index = np.arange(len(theirs))
    assert equal([*ours.read(index, index * 0)], [*theirs.read(index, index * 0)])
    remote_folder.cache_clear()
    server.fault = lambda path, count: "404" if path.startswith("held_out") else None
    assert open_held_out(Path(server.url)) is None


def test_faults_that_pass_change_nothing_and_are_reported(
    many: Path, server: RangeServer, cache: ShardCache, capfd: pytest.CaptureFixture[str]
) -> None:
    faults: dict[int, Fault] = {0: "drop", 1: "500", 2: "truncate", 3: "corrupt"}
    seen: dict[str, int] = {}

    def fault(path: str, count: int) -> Fault:
        kind = faults.get(seen.setdefault(path, len(seen))) if path.endswith(".mask.bin") else None
        return kind if count <= (2 if kind == "drop" else 1) else None  # aiohttp itself tries a kept connection twice

    server.fault = fault
    assert equal(read(Path(server.url), 10), read(many, 10))
    assert len(seen) >= 4, "more than a window of shards"
    said = [line for line in capfd.readouterr().err.splitlines() if server.url in line]
    assert sum("waiting for it, with retries" in line for line in said) == 3


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("404", r"/shard-\d+\.bin does not exist; check the name"),
        ("403", r"/shard-\d+\.bin cannot be read: got .*403.*, expected bytes 0 to \d+; check its name.* your rights"),
        ("elsewhere", r"/shard-\d+\.bin cannot be read: got .*file:///etc/passwd, expected bytes 0 to \d+; check"),
        (
            "204",
            r"/shard-\d+\.bin cannot be read: got 0 bytes, expected bytes 0 to \d+; check .* Range requests",
        ),
        (
            "short",
            r"/shard-\d+\.bin cannot be read: got \d+ bytes, expected bytes 0 to \d+; check .* Range requests",
        ),
        ("corrupt", r"/shard-\d+\.bin was fetched twice and does not match its sha256"),
    ],
)
def test_faults_that_last_end_the_run_and_leave_no_file(
    kind: Fault, problem: str, server: RangeServer, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PATIENCE", 2.0)
    cache.on_wait = at_most(8)
    server.fault = lambda path, count: kind if path.startswith("shard") and path.endswith("0.bin") else None
    with pytest.raises(LocalProblem, match=problem):
        read(Path(server.url), 60)
    left = [path.name for path in cache_folder().glob("*/shard-*") if path.name.endswith(("0.bin", ".part", ".tmp"))]
    assert [name for name in left if not name.endswith(".mask.bin")] == []


def test_what_is_no_folder_of_shards_is_refused_at_once(
    many: Path, server: RangeServer, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"nothing/manifest\.json does not exist"):
        open_shards(Path(f"{server.url}/nothing"))
    with pytest.raises(ConfigError, match=r"data: none://x/y cannot be read .* use s3:// or https://"):
        open_shards(Path("none://x/y"))
    monkeypatch.setattr(remote, "PATIENCE", 0.5)
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1/manifest\.json cannot be read: .*; check its name"):
        open_shards(Path("http://127.0.0.1:1"))
    remote_folder.cache_clear()
    server.fault = lambda path, count: "trickle"
    with pytest.raises(ConfigError, match=r"manifest\.json cannot be read: got .* took more than 1\.5 s, expected the"):
        open_shards(Path(server.url))


def test_a_reader_says_that_it_waits_while_the_network_is_lost_and_then_goes_on(
    many: Path,
    server: RangeServer,
    cache: ShardCache,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(remote, "SILENCE", 0.5)
    lost, waits = threading.Event(), list[str]()
    lost.set()
    server.fault = lambda path, count: "drop" if lost.is_set() and path.startswith("shard") else None
    cache.on_wait = waits.append
    threading.Timer(3.5, lost.clear).start()
    began = time.monotonic()
    ours = read(Path(server.url), 2)
    assert time.monotonic() - began > 3.5
    assert len(waits) >= 4 and waits[0].startswith(f"waiting for {server.url}/shard-")
    assert equal(ours, read(many, 2))
    said = [line for line in capfd.readouterr().err.splitlines() if "for more than" in line]
    assert said and len(said) == len(set(said)), "once per shard"
    assert said[0].startswith(f"data: waiting for {server.url}/shard-")


HOLDS = """
import sys, time
from pathlib import Path
from electra_sampler.foundation.locks import Lock
held = Lock(Path(sys.argv[1]))
print(flush=True)
time.sleep(3)
"""


def test_an_opening_says_for_whom_it_waits(
    server: RangeServer, cache: ShardCache, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SILENCE", 0.5)
    server.delay = 1.0
    folder = remote.RemoteFolder(server.url).local
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, folder / remote.LOCK], stdout=subprocess.PIPE)
    assert holder.stdout and holder.stdout.readline()
    capfd.readouterr()
    open_shards(Path(server.url))
    holder.communicate()
    first, second = capfd.readouterr().err.splitlines()
    assert first == f"waiting for {server.url}" and second.startswith(f"waiting for process {holder.pid} on ")


@pytest.mark.usefixtures("cache")
def test_ctrl_c_ends_the_wait_for_the_first_shard(server: RangeServer, tmp_path: Path, launch: Launch) -> None:
    server.fault = lambda path, count: "drop" if path.startswith("shard") else None
    process, started = launch(0, *arguments(server.url, tmp_path / "far")), tmp_path / "far" / "starts.jsonl"
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    finished(process, code=75)
    assert time.monotonic() - began < 5
    assert json.loads((tmp_path / "far" / "logs" / "rank-0000.json").read_text())["reason"] == "stopped"


def test_a_connection_slower_than_the_least_rate_is_lost_and_tried_again(
    many: Path,
    server: RangeServer,
    cache: ShardCache,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(remote, "SLOWEST", 1.0)
    cache.on_wait = at_most(200)
    slow: list[str] = []

    def fault(path: str, count: int) -> Fault:
        if path.startswith("shard"):
            slow.append(path)
        return "trickle" if slow == [path] else None

    server.fault = fault
    assert equal(read(Path(server.url), 2), read(many, 2))
    assert f"{slow[0]} cannot be read (FSTimeoutError: took more than 1 s); waiting" in capfd.readouterr().err


@pytest.mark.parametrize("damage", [lambda content: content[:-4], lambda content: content[:-1] + b"\x7f"])
def test_a_copy_that_changed_between_two_runs_is_fetched_again(
    damage: Callable[[bytes], bytes],
    many: Path,
    server: RangeServer,
    cache: ShardCache,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ours = read(Path(server.url), 4)
    copy = min(cache_folder().glob("*/shard-*.mask.bin"))
    copy.write_bytes(damage(copy.read_bytes()))
    server.requests.clear()
    monkeypatch.setattr(pretrain.data.shards, "CACHE", ShardCache())  # as in a new process
    assert equal(read(Path(server.url), 4), ours)
    assert server.requests[copy.name] == 1 and copy.read_bytes() == (many / copy.name).read_bytes()
    assert f"data: {copy} differs from its manifest.json; it is removed and fetched again" in capfd.readouterr().err


def test_a_process_verifies_each_copy_once_and_its_steps_do_not(
    many: Path, server: RangeServer, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(Path(server.url), 8)
    verified: list[Path] = []

    def verify(path: Path) -> str:
        if path.name.startswith("shard"):
            assert threading.current_thread().name == "fetching shards"
            verified.append(path)
        return file_sha256(path)

    monkeypatch.setattr(remote, "file_sha256", verify)
    monkeypatch.setattr(pretrain.data.shards, "CACHE", ShardCache())  # as in a new process
    monkeypatch.setattr(pretrain.data.shards, "OPEN_SHARDS", 0)
    assert equal(read(Path(server.url), 8), read(many, 8))
    assert verified and len(verified) == len(set(verified))


def test_whatever_ends_the_fetching_thread_ends_the_run(server: RangeServer, cache: ShardCache) -> None:
    shards = open_shards(Path(server.url))
    (shards.folders[0] / "shard-99999.bin").symlink_to("nowhere")
    cache.on_wait = at_most(5)
    with pytest.raises(FileNotFoundError, match=r"shard-99999\.bin"):
        shards.read(np.arange(1), np.zeros(1, int))


@pytest.mark.parametrize(
    ("login", "query"),
    [("user:se%2Fcr%40et", ""), ("", "token=secret&X-Amz-Signature=secret"), ("user:se/cr%40et", "token=secret")],
)
def test_the_secrets_of_a_url_open_it_and_are_part_of_no_name_or_message(
    login: str, query: str, many: Path, server: RangeServer, cache: ShardCache, capfd: pytest.CaptureFixture[str]
) -> None:
    server.login, server.query = unquote(login), query
    host = server.url.removeprefix("http://")
    given = Path(f"http://{login}{'@' if login else ''}{host}{'?' if query else ''}{query}")
    server.fault = lambda path, count: "500" if path == "manifest.json" and count == 1 else None
    assert equal(read(given, 4), read(many, 4))
    shards = open_shards(given)
    held_out = open_held_out(*map(Path, shards.names))
    assert held_out and shards.names == (server.url,)
    server.fault = lambda path, count: "elsewhere" if path.startswith("held_out/shard") else None
    with pytest.raises(ConfigError) as refused:
        held_out.read(np.arange(1), np.zeros(1, int))
    with pytest.raises(ConfigError) as twice:
        open_shards(given, given)
    said = f"{refused.value} {twice.value} {capfd.readouterr().err}"
    assert "waiting for it, with retries" in said and "is named twice" in said
    assert not re.search("se.{0,3}cr|user|[?@]", said), said


def test_a_manifest_cannot_name_files_outside_its_folder(many: Path, tmp_path: Path, cache: ShardCache) -> None:
    folder = shutil.copytree(many, tmp_path / "theirs")
    escaping = {"tokenizer_files": {"../../escaped": "0" * 64}}
    save_manifest(load_manifest(folder).model_copy(update=escaping), folder)
    with serving(folder, delay=0) as server, pytest.raises(ConfigError, match=r"damaged .tokenizer_files"):
        open_shards(Path(server.url))


def arguments(data: str | Path, output: Path, *more: str) -> list[str | Path]:
    in_windows = ("batch_size=16", "order=windows", f"window={WINDOW}")
    return [*run_arguments(data, output, *in_windows), "--deepspeed_config", "zero0_fp32", *more]


def files(folder: Path) -> bytes:
    """The content of everything in a folder."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


LOGIN, QUERY = "someone:unseen", "token=unheard"


def secretly(server: RangeServer) -> str:
    """The URL of a server that from now on asks for a login and a token."""
    server.login, server.query = LOGIN, QUERY
    return f"{server.url.replace('://', f'://{LOGIN}@')}?{QUERY}"


@pytest.mark.long
@pytest.mark.usefixtures("cache")
def test_a_dry_run_shows_no_secret_of_a_url(many: Path, server: RangeServer, tmp_path: Path, launch: Launch) -> None:
    output = finished(launch(0, *arguments(secretly(server), tmp_path / "far"), "--dry_run"))
    assert f"--data {server.url} --output" in output and not re.search("unseen|unheard", output)


@pytest.mark.long
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("ranks", [0, 2])
def test_a_run_from_a_faulty_server_killed_and_resumed_has_the_losses_of_a_local_run(
    ranks: int, many: Path, tmp_path: Path, launch: Launch
) -> None:
    quarter = sum(shard.size for shard in load_manifest(many).shards) / 4e9
    finished(launch(ranks, *arguments(many, tmp_path / "local")))
    with serving(many) as server:
        server.fault = lambda path, count: "drop" if count == 1 and path.endswith("1.bin") else None
        command = arguments(secretly(server), tmp_path / "far", "--cache_gb", str(quarter))
        process = launch(ranks, *command)
        while not (tmp_path / "far" / "checkpoints" / "step-00000008").is_dir() and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, 9)
        output = process.communicate()[0]
        kept = files(tmp_path)
        output += finished(launch(ranks, *command))
        masks = [count for name, count in server.requests.items() if name.endswith(".mask.bin") and "/" not in name]
    assert "resume" in output
    assert losses(tmp_path / "far") == losses(tmp_path / "local")
    assert stored() <= quarter * 1e9
    kept += files(tmp_path)
    assert server.url.encode() in kept and not re.search(b"unseen|unheard", kept), "in the lock, while it is held, too"
    ours = "\n".join(line for line in output.splitlines() if not re.search(r"\[(launch|runner)\.py:", line))
    assert not re.search("unseen|unheard", ours), "DeepSpeed's launcher shows the whole command"
    assert max(masks) <= 3, "one fetch for all ranks; a start and a fault add one each"


@pytest.mark.long
@pytest.mark.usefixtures("cache")
def test_an_outage_longer_than_the_hang_timeout_does_not_end_two_ranks(
    many: Path, tmp_path: Path, launch: Launch
) -> None:
    quarter = sum(shard.size for shard in load_manifest(many).shards) / 4e9
    finished(launch(2, *arguments(many, tmp_path / "local")))
    until = [0.0]
    with serving(many) as server:

        def fault(path: str, count: int) -> Fault:
            if path.startswith("shard") and len(server.requests) > 36 and not until[0]:
                until[0] = time.monotonic() + 30
            return "500" if path.startswith("shard") and time.monotonic() < until[0] else None

        server.fault = fault
        patience = ("--cache_gb", str(quarter), "--hang_timeout", "12")
        output = finished(launch(2, *arguments(server.url, tmp_path / "far", *patience)))
    assert until[0] and "waiting for it, with retries" in output
    assert losses(tmp_path / "far") == losses(tmp_path / "local")
