"""Runs the parts of `bench/gpu.py` within their time limits, and keeps their results.

On a GPU the checks of stage a run side by side, as most of their time is the host's; what is timed runs alone.
"""

import json
import os
import platform
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock
from typing import Any

from bench.gpu.items import keep
from bench.gpu.parts import STAGES, WARM_UP_SHARE, GpuOptions, Part, Stage, all_parts
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.files import ROOT, make_folder, require_folder

LOGS = "logs"
AT_ONCE = {"cuda": 8, "cpu": 1}
"""Checks that run at the same time."""
LEAST_SECONDS = 5.0
"""No part is started when less time than this is left."""
POLL_SECONDS = 0.5
"""Time between two checks of a part's results."""
Record = dict[str, Any]


def main(options: GpuOptions) -> int:
    """Runs the unfinished parts in order; returns 1 if anything failed."""
    if options.data and not (options.data / "manifest.json").is_file():
        raise ConfigError(f"data: {options.data} has no manifest.json, expected shards from build_shards.py")
    options = with_whole_paths(options)
    if options.inside:
        from bench.gpu.inside import run_inside

        return run_inside(options.inside, options)
    require_folder(options.output)
    require_folder(options.work, "work")
    for folder in (options.output, options.work):
        make_folder(folder)
    (options.output / LOGS).mkdir(exist_ok=True)
    deadline, interrupted = time.monotonic() + 60 * options.minutes, Event()
    results = Results(options.output)

    def run(part: Part) -> None:
        left = deadline - time.monotonic()
        if reason := part.missing(options):
            results.write(part, {"state": "skipped", "reason": reason})
        elif left < LEAST_SECONDS or interrupted.is_set():
            results.write(part, {"state": "unfinished"})
        else:
            run_part(part, min(part.seconds, left), options, results, interrupted)

    parts = list(in_order([part for part in all_parts(options) if part.stage in options.stages], results))
    with ThreadPoolExecutor(AT_ONCE[options.device]) as pool:
        try:
            list(pool.map(run, [part for part in parts if part.stage == "a"]))
            for part in parts:
                if part.stage != "a":
                    run(part)
        finally:
            interrupted.set()
    return summary(options, results)


def with_whole_paths(options: GpuOptions) -> GpuOptions:
    """Returns the options with absolute paths, as parts run in the repository's folder."""
    paths = {name: value.resolve() for name, value in options if isinstance(value, Path)}
    return options.model_copy(update=paths)


class Results:
    """The records of all parts: one JSON file per stage in the output folder."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self._writing = Lock()

    def read(self, stage: Stage) -> dict[str, Record]:
        """Returns the records of a stage by part."""
        path = self._path(stage)
        return dict(json.loads(path.read_text())) if path.is_file() else {}

    def of(self, part: Part) -> Record:
        return self.read(part.stage).get(part.name, {})

    def write(self, part: Part, changes: Record) -> None:
        """Changes the record of a part."""
        with self._writing:
            records = self.read(part.stage)
            records[part.name] = records.get(part.name, {}) | changes
            keep(records, self._path(part.stage))

    def _path(self, stage: Stage) -> Path:
        return self.output / f"{stage}-{STAGES[stage]}.json"


def in_order(parts: list[Part], results: Results) -> Iterator[Part]:
    """Yields the unfinished parts; parts that failed or used up their own time limit come last."""
    states = {part: results.of(part).get("state") for part in parts}
    yield from (part for part, state in states.items() if state not in ("finished", "failed", "too slow"))
    yield from (part for part, state in states.items() if state in ("failed", "too slow"))


def run_part(part: Part, seconds: float, options: GpuOptions, results: Results, interrupted: Event) -> None:
    """Runs a part for at most `seconds`, with its output in a log of its own and its results in the stage's file."""
    print(f"{part.stage}) {part.name}: at most {seconds:.0f} s", flush=True)
    before, product = results.of(part), options.product(part.name)
    product.unlink(missing_ok=True)
    if "found" in before:  # perhaps by another machine
        keep(before["found"], product)
    command = part.command
    if part.warm_up:
        command += ("--warm_up_seconds", f"{WARM_UP_SHARE * seconds:.1f}", "--output", str(product))
    results.write(part, {"state": "unfinished", "machine": machine(options.device)})
    started, seen = time.monotonic(), 0
    found = os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))
    environment = os.environ | {"PYTHONPATH": found}  # a machine with a GPU need not have this package installed
    with (options.output / LOGS / f"{product.stem}.txt").open("a") as log:
        log.write(f"== {shlex.join(command[1:])}\n")
        log.flush()
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, process_group=0)
        try:
            while (code := exit_code(process)) is None and time.monotonic() < started + seconds:
                if interrupted.is_set():
                    break
                seen = take(product, seen, part, results)
        finally:  # also when the user interrupts
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # and its child processes
                process.wait()
                log.write(f"ended after {time.monotonic() - started:.0f} s\n")
    take(product, seen, part, results)
    late = "too slow" if seconds >= part.seconds and not interrupted.is_set() else "unfinished"
    fails = bool(code) and not (part.warm_up and product.exists())  # how a contender of a step ended is a result
    results.write(
        part,
        {
            "state": late if code is None else "failed" if fails else "finished",
            "exit": code,
            "seconds": round(before.get("seconds", 0.0) + time.monotonic() - started, 1),
            "calls": before.get("calls", 0) + 1,
        },
    )
    print(f"   {part.name} {results.of(part)['state']} after {time.monotonic() - started:.0f} s", flush=True)


def exit_code(process: "subprocess.Popen[bytes]") -> int | None:
    """Waits a moment for the process; returns its exit code if it has ended."""
    try:
        return process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def take(product: Path, seen: int, part: Part, results: Results) -> int:
    """Copies a part's results into the stage's file if they have changed since `seen`; returns the time of change."""
    changed = product.stat().st_mtime_ns if product.exists() else 0
    if changed != seen:
        results.write(part, {"found": json.loads(product.read_text())})
    return changed


def machine(device: str) -> Record:
    """Returns the device's name and the versions of the software."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else platform.machine()
    return {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}


def summary(options: GpuOptions, results: Results) -> int:
    """Prints the state of every part, with its failed and skipped items; returns 1 if anything failed."""
    states = []
    for part in all_parts(options):
        if part.stage in options.stages and (record := results.of(part)):
            states.append(record["state"])
            print(f"{part.stage}) {part.name:20} {record['state']:10} {record.get('reason', '')}".rstrip())
            for name, item in items_of(record):
                if item["outcome"] != "passed":
                    print(f"     {name}: {item['outcome']} {item.get('reason', '')}".rstrip())
    if "unfinished" in states or "too slow" in states:
        print("unfinished: run the same command again to continue")
    return int("failed" in states)


def items_of(record: Record) -> Iterator[tuple[str, Record]]:
    """Yields the named items that a part recorded."""
    found = record.get("found")
    for name, item in found.items() if isinstance(found, dict) else ():
        if isinstance(item, dict) and "outcome" in item:
            yield name, item
