"""Starts scripts in processes that have imported the project and its libraries already: seconds less for each.

Each is a process of its own, forked from one that has done nothing but import: with its own arguments, environment,
folder, output and exit code. What only a new interpreter shows (what is imported, what an import prints, what a library
reads from the environment when it is imported) is tested by starting one, as in `test_entry_points.py`.
"""

import atexit
import gc
import io
import os
import runpy
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryFile
from threading import Timer
from typing import IO, Any
from unittest.mock import patch

import deepspeed.utils.pin_memory  # noqa: F401  (an engine's destructor imports it, and may run within another import)

REPOSITORY = Path(__file__).resolve().parents[1]
IMPORTED = [
    *("torch", "torch._dynamo", "torch.distributed.elastic", "deepspeed", "pydantic", "scipy.stats", "sklearn.metrics"),
    *("matplotlib.pyplot", "torch.utils.tensorboard", "jinja2", "pyarrow", "regex", "safetensors.torch"),
    *("transformers.models.electra.modeling_electra", "transformers.models.bert.tokenization_bert"),
    *("deepspeed.ops.op_builder", "matplotlib.backends.backend_svg", "setuptools.dist", "nanotoken"),
    *("data_prep.build_shards", "pretrain.evaluate", "pretrain.export", "pretrain.page"),
    *("pretrain.training.start", "finetune.reporting.results", "finetune.running.run_list"),
    *("finetune.glue.job", "finetune.squad.job", "finetune.tagging.job"),
]
"""Imported once: libraries, and what the commands import; each process still runs its script from the beginning."""
AT_IMPORT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
"""Read by libraries when they are imported."""


@cache
def _context() -> Any:
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with patch.dict(os.environ, AT_IMPORT):
        first = context.Process(target=int)  # which starts the server
        first.start()
        first.join()
    return context


def _become(
    arguments: list[str], environment: dict[str, str], folder: str, given: str, out: Connection, err: Connection
) -> None:
    """Runs a script as `python ARGUMENTS` would, and ends as it does."""
    gc.freeze()  # or each full collection would visit half a million objects of libraries, and copy their pages
    read, write = os.pipe()
    with os.fdopen(write, "w", encoding="utf-8") as file:
        file.write(given)  # less than a pipe holds
    os.dup2(read, 0)
    sys.stdin = os.fdopen(0, encoding="utf-8")
    for number, end in ((1, out), (2, err)):
        os.dup2(end.fileno(), number)
    for end in {out, err}:
        end.close()
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, "wb", -1), "utf-8", line_buffering=number == 2) for number in (1, 2)
    )
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.orig_argv = arguments, [sys.executable, *arguments]
    sys.path.insert(0, str(Path(arguments[0]).parent))
    code: Any = 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


class Warm:
    """A process that runs a script on the input `given`, with what tests use of `Popen`."""

    def __init__(
        self,
        *arguments: str | Path,
        given: str = "",
        env: Mapping[str, str] = {},
        cwd: Path = REPOSITORY,
        stderr: IO[bytes] | None = None,
    ) -> None:
        script, *rest = map(str, arguments)
        read, write = _context().Pipe(duplex=False)
        error = Connection(os.dup(stderr.fileno()), readable=False) if stderr else write
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        passed = ([str(REPOSITORY / script), *rest], environment, str(cwd), given, write, error)
        self._process = _context().Process(target=_become, args=passed)
        self._process.start()
        for end in {write, error}:
            end.close()
        self.pid, self.kill, self.terminate = self._process.pid, self._process.kill, self._process.terminate
        self.stdout = os.fdopen(os.dup(read.fileno()), encoding="utf-8", errors="replace")
        read.close()

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutExpired(str(self.pid), timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float = 240) -> tuple[str, None]:
        """The rest of the output, once the process has ended; one that takes too long is killed."""
        timer = Timer(timeout, self.kill)
        timer.start()
        said = self.stdout.read()
        self.wait(timeout)
        if not timer.is_alive():
            raise TimeoutExpired(str(self.pid), timeout, said)
        timer.cancel()
        return said, None


def run(*arguments: str | Path, **options: Any) -> CompletedProcess[str]:
    """A script's exit code, output and errors."""
    with TemporaryFile() as errors:
        process = Warm(*arguments, stderr=errors, **options)
        said, _ = process.communicate()
        errors.seek(0)
        return CompletedProcess(list(arguments), process.wait(), said, errors.read().decode())


def two_ranks(*arguments: str | Path, port: int = 0) -> list[Warm]:
    """Starts a script as a job of two processes, without a launcher."""
    from tests.conftest import free_port  # and pytest, which the processes do not need

    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port()), "WORLD_SIZE": "2"}
    return [Warm(*arguments, env=job | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]


def outputs(processes: list[Warm], seconds: float = 300) -> list[str]:
    """What each process has said; all must end well."""
    said = [process.communicate(seconds)[0] for process in processes]
    assert not any(process.returncode for process in processes), "\n".join(said)
    return said
