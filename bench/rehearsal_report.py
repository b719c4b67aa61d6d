"""The report of a rehearsal in Markdown: resources per stage, and predictions beside measurements."""

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from foundation.markdown_table import markdown_table
from foundation.progress import duration
from pretrain.training.estimates import GIB

Stage = Mapping[str, Any]
GB, MB = 1e9, 1e6
RANKS = 16
REPOSITORY = Path(__file__).resolve().parents[1]
CLOSE = 0.1
"""A larger relative error is printed in bold; its row should give the reason."""
STAGES = {
    "text": "make the text",
    "build_planned": "`build_shards.py --dry_run`",
    "build_killed": "`build_shards.py`, killed in the middle",
    "build": "`build_shards.py`, resumed",
    "build_again": "`build_shards.py` on the finished shards",
    "verified": "`inspect_shards.py --verify`",
    "refused": "`deepspeed --hostfile hostfiles/16v100 pretrain/run.py`, refused",
    "planned": "`pretrain/run.py --dry_run --hostfile hostfiles/16v100`",
    "whole": "16 ranks, two steps",
    "killed": "16 ranks, one killed after the first step",
    "resumed": "16 ranks, resumed for the second step",
    "evaluated": "`evaluate.py`",
    "exported": "`export.py`",
    "loaded": "loaded by Hugging Face",
    "fine_tuned": "RTE, ten updates, two ranks",
}

CLUSTER = """\
Two hosts with eight V100 each run the same command, with nothing added. This machine could not show:

- **Precision.** fp16 with a dynamic loss scale, which DeepSpeed refuses on a CPU; here bf16.
- **Communication.** NCCL, over NVLink within a host and the network between them, beside the backward pass; here gloo
  over loopback, one rank after another. The bytes are the same.
- **Compute.** Fused Adam and attention kernels, a micro-batch of many sequences, activations kept; here one sequence a
  rank, and activations computed again.
- **Memory.** Weights, moments and activations are on the GPU. The host holds what a process and its libraries need,
  and on the first rank what a checkpoint gathers.
- **Files.** Each host reads the shards through a shared file system and caches them itself; here both share one disk
  and one cache.
- **Faults.** A host can lose its power, its network or its clock. Here a process was killed."""


def report(stages: Mapping[str, Stage], machine: str) -> str:
    """Returns the whole report in Markdown.

    Args:
        stages: results by stage name.
        machine: command, machine and versions, in two sentences.
    """
    sections = {
        "Resources per stage": _usage(stages),
        "Predicted and measured": _predictions(stages),
        "The shards": ["```", *_text(stages["verified"]), "```"],
        "Refused without a GPU": ["```", *_text(stages["refused"]), "```"],
        "Killed and resumed": _resumed(stages),
        "The start of 16 ranks": _start(stages["whole"]),
        "Bytes on the wire": _wire(stages["whole"]),
        "The model": [
            "```",
            *_text(stages["evaluated"]),
            *_text(stages["loaded"]),
            *_text(stages["fine_tuned"]),
            "```",
        ],
        "Left behind": _left(stages["left"]),
        "Differences on a cluster": CLUSTER.splitlines(),
    }
    lines = ["# Dress rehearsal", "", machine]
    for title, content in sections.items():
        lines += ["", f"## {title}", "", *content]
    return "\n".join(lines) + "\n"


NOISE = re.compile(r"\[(INFO|WARNING|ERROR)\]|it/s\]$|^\[transformers\]|^pdsh@|^verify: \d+%|: step \d+/")
"""Lines that are remarks of launchers and libraries, or progress."""


def _text(stage: Stage) -> list[str]:
    """Output of a command, without remarks of launchers and libraries and without the repository's path."""
    texts = [line["text"].replace(f"{REPOSITORY}/", "") for line in stage["lines"]]
    return [text for text in texts if text and not NOISE.search(text)]


def _usage(stages: Mapping[str, Stage]) -> list[str]:
    head = [
        "stage",
        "time",
        "CPU time",
        "processes",
        "largest",
        "together",
        "machine",
        "descriptors",
        "maps",
        "disk",
        "sent",
    ]
    rows = []
    for name, title in STAGES.items():
        stage = stages[name]
        if "cpu_seconds" not in stage:
            rows.append([title, duration(stage["seconds"]), *[""] * 7, f"{stage['bytes'] / GB:.1f} GB", ""])
            continue
        rows.append(
            [
                title,
                duration(stage["seconds"]),
                duration(stage["cpu_seconds"]),
                str(stage["processes"]),
                *(f"{value / GB:.2f} GB" for value in (stage["largest"]["value"], stage["together"], stage["machine"])),
                str(stage["descriptors"]["value"]),
                f"{stage['maps']['value']:,}",
                f"{stage['disk'] / GB:.1f} GB",
                f"{max((line['sent'] for line in stage['lines']), default=0) / GB:.2f} GB",
            ]
        )
    return [
        *markdown_table(head, rows),
        "",
        "Memory is the peak PSS of the largest process, of all processes together, and what the machine had in use",
        "beyond what it had before. Descriptors and maps are those of the process with the most. Disk is what a stage",
        "added at its peak, sent is what the two hosts sent to each other and within themselves.",
    ]


def _predictions(stages: Mapping[str, Stage]) -> list[str]:
    build, planned = "\n".join(_text(stages["build_planned"])), "\n".join(_text(stages["planned"]))
    both = stages["build_killed"]["seconds"] + stages["build"]["seconds"]
    whole = stages["whole"]
    ranks, checkpoint = RANKS, whole["checkpoint_bytes"]
    build_seconds = _seconds(r"about (\d+:\d\d:\d\d) with", build)
    cpu = stages["build_killed"]["cpu_seconds"] + stages["build"]["cpu_seconds"]
    workers = _number(r"with (\d+) workers?", build)
    told = ("saved ", "step 2/2 ")  # each checkpoint, and the step before the last one
    sent = [line["sent"] for line in whole["lines"] if line["text"].partition(": ")[2].startswith(told)]
    rows = [
        ("text", _number(r"about ([\d,.]+) MB of text", build) * MB, stages["text"]["bytes"], GB, "GB", ""),
        ("shards", _number(r"about ([\d,.]+) MB of shards", build) * MB, stages["build"]["shards_bytes"], GB, "GB", ""),
        ("CPU time of the build", build_seconds * workers, cpu, 60, "min", "reading and merging are not in the sample"),
        (
            "time of the build",
            build_seconds,
            both,
            60,
            "min",
            f"the dry run counts every core as busy; the build had {cpu / both:.2f} of {workers:g}, and two starts",
        ),
        (
            "memory of a rank",
            _number(r"memory\s+([\d.]+) GiB", planned) * GIB,
            whole["largest"]["value"],
            GB,
            "GB",
            f"predicted for a GPU; the first rank also holds its libraries and {checkpoint / GB:.2f} GB of checkpoint",
        ),
        (
            "disk for all checkpoints",
            _number(r"disk\s+([\d.]+) GiB for checkpoints", planned) * GIB,
            4 * checkpoint,
            GB,
            "GB",
            "",
        ),
        # Computed. Checkpoint: fp32 weights and two moments, except the first rank's own part. Step: bf16 gradients
        # to the rank that updates them, and updated weights to all ranks.
        ("sent for a checkpoint", checkpoint * (ranks - 1) / ranks, sent[-1] - sent[-2], GB, "GB", ""),
        (
            "sent by a step",
            2 * (ranks - 1) * checkpoint / 12 * 2,
            sent[1] - sent[0],
            GB,
            "GB",
            "includes an evaluation",
        ),
    ]
    head = ["quantity", "predicted", "measured", "difference", "reason"]
    return markdown_table(
        head,
        (
            [
                what,
                f"{predicted / unit:.2f} {name}",
                f"{measured / unit:.2f} {name}",
                _difference(predicted, measured),
                why,
            ]
            for what, predicted, measured, unit, name, why in rows
        ),
    )


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    return float(found[1].replace(",", "")) if found else float("nan")


def _seconds(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    hours, minutes, seconds = map(int, found[1].split(":")) if found else (0, 0, 0)
    return 3600 * hours + 60 * minutes + seconds


def _difference(predicted: float, measured: float) -> str:
    share = measured / predicted - 1
    return f"{share:+.0%}" if abs(share) <= CLOSE else f"**{share:+.0%}**"


def _resumed(stages: Mapping[str, Stage]) -> list[str]:
    whole, resumed = stages["whole"], stages["resumed"]
    losses = [stage["state"]["extra"]["recent_losses"] for stage in (whole, resumed)]
    equal = whole["sums"] == resumed["sums"] and losses[0] == losses[1]
    return [
        f"Losses of the two steps, undisturbed: {losses[0]}; killed after the first and resumed: {losses[1]}.",
        f"Weights, moments and state after the second step are {'bitwise equal' if equal else '**not equal**'}.",
    ]


def _start(whole: Stage) -> list[str]:
    seconds: dict[str, list[float]] = whole["starts"][-1]["start_seconds"]
    totals = [sum(phases) for phases in zip(*seconds.values(), strict=True)]
    rows = [[phase, *_spread(of_ranks)] for phase, of_ranks in (seconds | {"all": totals}).items()]
    return markdown_table(["phase", "fastest rank (s)", "median (s)", "slowest (s)"], rows)


def _spread(values: list[float]) -> Iterable[str]:
    return (f"{value:.1f}" for value in (min(values), statistics.median(values), max(values)))


def _wire(whole: Stage) -> Iterator[str]:
    before = {"seconds": 0.0, "sent": whole["lines"][0]["sent"]}
    rows = []
    for line in whole["lines"]:
        if line["sent"] - before["sent"] > 0.01 * GB:
            gigabytes = (line["sent"] - before["sent"]) / GB
            rows.append(
                [f"{gigabytes:.2f} GB", f"{line['seconds'] - before['seconds']:.0f} s", f"`{line['text'][:80]}`"]
            )
        before = line
    yield from markdown_table(["sent by all ranks", "time", "until the line"], rows)


def _left(left: Stage) -> list[str]:
    return [f"Processes: {len(left['processes'])}. Files in shared memory: {', '.join(left['shared']) or 'none'}."]
