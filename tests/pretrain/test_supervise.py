"""Claims about the supervisor, with small commands; tests/reliability/test_faults.py kills ranks under it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.locks import Lock
from pretrain.job.rank_log import EndRecord
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import make_plan
from pretrain.runs.folder import write_run
from pretrain.supervise import run_folder_of
from tests.conftest import free_port
from tests.pretrain.whole_runs import Launch, finished, run_arguments, wait_for_step


def supervise(launch: Launch, *command: str | Path, max_restarts: int = 2) -> subprocess.Popen[str]:
    return launch(0, "pretrain/supervise.py", "--max_restarts", str(max_restarts), "--", *command)


def counting(tmp_path: Path, ending: str) -> list[str]:
    """A command that counts its starts in a file, prints the number and ends; its last lines look like a run's."""
    script = (
        "import os, signal, sys, time; file = open(sys.argv[1], 'a+'); file.write('x'); file.flush(); file.seek(0);"
        f" number = len(file.read()); print('start', number, flush=True); {ending}"
    )
    return [sys.executable, "-c", script, str(tmp_path / "starts"), "pretrain/run.py", "--output", str(tmp_path)]


@pytest.mark.parametrize(
    ("ending", "code", "starts", "said"),
    [
        ("sys.exit(2)", 2, 1, r"start 1\n"),
        ("sys.exit(75)", 75, 1, r"start 1\n"),
        ("os.kill(os.getpid(), 9)", 1, 3, r"restart 2 of 2, from the start(.|\n)*gave up after 2 restarts"),
        # `deepspeed` returns 0 when its node launcher is killed
        ("sys.exit(0)", 1, 3, r"with code 0 before the run's last step"),
    ],
    ids=["bad usage", "stopped on request", "killed", "ended before the last step"],
)
def test_only_failures_are_restarted_up_to_the_limit(
    ending: str, code: int, starts: int, said: str, tmp_path: Path, launch: Launch
) -> None:
    output = finished(supervise(launch, *counting(tmp_path, ending)), code)
    assert (tmp_path / "starts").read_text() == "x" * starts
    assert re.search(said, output)


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(2)", 2), ("sys.exit(75)", 0)])
def test_after_the_last_step_is_saved_only_a_refused_command_is_a_failure(
    ending: str, code: int, tmp_path: Path, launch: Launch, shards_folder: Path
) -> None:
    plan = make_plan(RunOptions(preset="tiny", data=(shards_folder,), output=tmp_path))
    write_run(tmp_path, plan.description, plan.here.deepspeed.json)
    (tmp_path / "checkpoints" / f"step-{plan.run.optim.steps:08}").mkdir(parents=True)
    finished(supervise(launch, *counting(tmp_path, ending)), code)
    assert (tmp_path / "starts").read_text() == "x"


def test_output_of_the_command_and_its_ranks_is_shown_without_control_characters(
    tmp_path: Path, launch: Launch
) -> None:
    (tmp_path / "logs").mkdir()
    record = EndRecord(0, "no\x1bde", 1, "now")
    path = str(tmp_path / "logs" / "rank-0000.json")
    script = f"from pathlib import Path; Path({path!r}).write_text({json.dumps(record._asdict())!r})"
    ending = f"print('\\x1b]0;title\\x07\\u202e', flush=True); {script}; sys.exit(1)"
    output = finished(supervise(launch, *counting(tmp_path, ending), max_restarts=0), code=1)
    assert output.replace("\n", "").isprintable(), ascii(output)
    assert r"\x1b]0;title\x07\u202e" in output
    assert "supervise: rank 0 on no\\x1bde: exited without a message (probably killed); its output is in" in output


def test_a_launcher_that_cannot_be_started_is_one_clear_line(tmp_path: Path, launch: Launch) -> None:
    output = finished(supervise(launch, "README.md", "pretrain/run.py", "--output", tmp_path / "run"), code=2)
    assert output.startswith("supervise.py: error: command: cannot start 'README.md' (")
    assert output.count("\n") == 1


def test_a_signal_reaches_the_command_and_its_descendants_and_leads_to_exit_code_75(
    tmp_path: Path, launch: Launch
) -> None:
    process = supervise(launch, *counting(tmp_path, r"child = os.fork(); os.write(1, b'ready\n'); time.sleep(60)"))
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)].count("ready\n") == 2
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    finished(process, code=75)
    assert time.monotonic() - started < 20
    assert (tmp_path / "starts").read_text() == "x"


def test_a_restart_waits_for_leftover_processes_of_the_run_to_end(tmp_path: Path, launch: Launch) -> None:
    with Lock(tmp_path / "lock"):
        process = supervise(launch, *counting(tmp_path, "sys.exit(1)"), max_restarts=1)
        assert process.stdout is not None
        said = iter(process.stdout.readline, "")
        assert any(f"supervise: waiting up to 120 s for the end of process {os.getpid()} on " in line for line in said)
        time.sleep(1)
        assert (tmp_path / "starts").read_text() == "x"
    finished(process, 1)
    assert (tmp_path / "starts").read_text() == "xx"


@pytest.mark.parametrize(
    "how",
    [signal.SIGINT, *(pytest.param(how, marks=pytest.mark.long) for how in (signal.SIGTERM, "stop"))],
)
def test_stopping_the_real_launcher_saves_in_time(
    how: signal.Signals | str, shards_folder: Path, run_folder: Path, launch: Launch
) -> None:
    """DeepSpeed's launcher kills ranks 30 s after a SIGTERM or Ctrl-C: it is ended first. No traceback is shown."""
    arguments = run_arguments(shards_folder, run_folder, "optim.steps=3000", "log_every=4")
    deepspeed = (Path(sys.executable).with_name("deepspeed"), "--num_gpus=2", f"--master_port={free_port()}")
    process = supervise(launch, *deepspeed, *arguments)
    wait_for_step(run_folder, 4)
    if isinstance(how, signal.Signals):
        process.send_signal(how)
    else:
        (run_folder / how).touch()
    output = finished(process, code=75)
    assert "\nstopped on request after step " in output
    assert "Traceback" not in output and "KeyboardInterrupt" not in output


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("deepspeed", "train.py"), "expected one that runs pretrain/run.py"),
        (("pretrain/run.py", "--steps", "3"), "--steps: unknown option"),
    ],
)
def test_a_command_that_is_not_a_run_is_refused(command: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run_folder_of(command)


@pytest.mark.parametrize(
    "command", ["deepspeed pretrain/run.py", "deepspeed --module pretrain.run", "electra-sampler pretrain"]
)
def test_the_run_folder_is_found_in_the_command(command: str) -> None:
    assert run_folder_of(command.split()) == Path("runs/base")
    assert run_folder_of([*command.split(), "--output", "there"]) == Path("there")
