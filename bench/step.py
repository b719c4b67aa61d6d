"""Speed of our pre-training step against Hugging Face's classes and against the machine's limit.

    python bench/step.py --preset small --batch_size 16 --seq_length 128 --dtype fp32

The peers (bench/peers/electra_step.py) are an ELECTRA step with Hugging Face's classes, eager and compiled. Ours runs
under DeepSpeed's engine with ZeRO-1; in bf16 and fp16 it keeps fp32 master weights, the peers do not. All train on the
same random ids, each in its own process. They warm up concurrently, then take turns, so that drift in the machine's
speed affects all. After every turn the table gives each contender's median step over all turns so far, its speed-up
over each peer, and its share of the limit. The limit is the fastest large square matrix product in the same precision,
measured between turns; every share is based on the FLOPs of our step (`estimates.flops_per_token`). A contender that
ends early says so in its row; the others continue, and the exit code is 1.
"""

import json
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from bench.contender import CONTENDERS, PEERS, Contender, Name, StepOptions, serve
from bench.matrix_rate import matrix_rates
from electra_sampler.foundation.command_line import HIDDEN, run_command
from electra_sampler.foundation.files import write_atomically
from pretrain.job.processes import leave


class StepBenchOptions(StepOptions):
    """The command line of the benchmark."""

    steps: int = Field(default=3, ge=1)
    """steps counted per turn, after one that is not counted"""
    turns: int = Field(default=2, ge=1)
    """turns per contender"""
    contenders: tuple[Name, ...] = CONTENDERS
    """contenders: Hugging Face's, eager and compiled, and our objectives"""
    warm_up_seconds: float = Field(default=600, gt=0)
    """a contender without a finished step after this time is killed"""
    output: Path | None = None
    """JSON file for the results, written after every turn"""
    serve: Annotated[Name | None, HIDDEN] = None


def main(options: StepBenchOptions) -> int:
    if options.serve:
        serve(options.serve, options)
        leave(0)  # without the shutdown, in which graphs and the process group may crash
    contenders = [Contender(name, options) for name in options.contenders]
    with ThreadPoolExecutor(len(contenders)) as pool:
        list(pool.map(lambda contender: contender.warm_up(options.warm_up_seconds), contenders))
    for turn, rates in enumerate(take_turns(contenders, options), 1):
        found = figures(contenders, rates, options)
        print(f"turn {turn} of {options.turns}: {table(found)}", flush=True)
        keep(found, options.output)
    for contender in contenders:
        contender.finish()
        keep(figures(contenders, rates, options), options.output)
    print_parts(contenders)
    return int(any(contender.ended for contender in contenders))


def take_turns(contenders: list[Contender], options: StepBenchOptions) -> Iterator[dict[str, float]]:
    """Lets the contenders train in turn; after each turn, yields the highest FLOP/s of matrix products so far."""
    rates = matrix_rates(options.dtype)
    for _ in range(options.turns):
        for contender in contenders:
            contender.steps(1 + options.steps)
        again = matrix_rates(options.dtype)
        rates = {name: max(rate, again[name]) for name, rate in rates.items()}
        yield rates


def figures(contenders: list[Contender], rates: dict[str, float], options: StepBenchOptions) -> dict[str, Any]:
    """Returns the results so far: shape, machine, rates of matrix products, and each contender's figures."""
    tokens, limit = options.batch_size * options.seq_length, max(rates.values())
    return {
        "shape": f"{options.preset}, {options.batch_size} x {options.seq_length}, {options.dtype}",
        "machine": next((contender.said["machine"] for contender in contenders if contender.said), "unknown"),
        "products": rates,
        "contenders": {contender.name: figures_of(contender, tokens, limit) for contender in contenders},
    }


def figures_of(contender: Contender, tokens: int, limit: float) -> dict[str, Any]:
    """Returns a contender's speed, if a step was counted, and the reason if it ended early."""
    found: dict[str, Any] = {"ended": contender.ended} if contender.ended else {}
    if not contender.seconds:
        return found
    own = statistics.median(contender.seconds)
    return found | {
        "seconds": own,
        "counted": len(contender.seconds),
        "tokens_per_second": tokens / own,
        "share_of_limit": contender.said["flops"] / own / limit,
        **{str(key): contender.said[key] for key in ("peak_mb", "parts") if key in contender.said},
    }


def table(found: dict[str, Any]) -> str:
    rows = found["contenders"]
    products = ", ".join(f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in found["products"].items())
    lines = [f"{found['shape']}, {found['machine']}; square products: {products}"]
    peers = {str(name): rows[name]["seconds"] for name in PEERS if "seconds" in rows.get(name, {})}
    for name, row in rows.items():
        speed = speed_of(row, peers) if "seconds" in row else ""
        lines.append(f"  {name:16} {speed}  {row.get('ended', '')}".rstrip())
    return "\n".join(lines)


def speed_of(row: dict[str, Any], peers: dict[str, float]) -> str:
    own = row["seconds"]
    ratios = "".join(f"  {seconds / own:5.2f}x {peer}" for peer, seconds in peers.items())
    speed = f"{own * 1000:9.1f} ms {row['tokens_per_second']:11,.0f} tokens/s{ratios}"
    return f"{speed}  {row['share_of_limit']:5.1%} of the limit  {row['peak_mb']:7,.0f} MB"


def print_parts(contenders: list[Contender]) -> None:
    """Prints the time of each part of our steps, and its share."""
    for contender in contenders:
        if parts := contender.said.get("parts"):
            whole = sum(parts.values())
            shares = ", ".join(f"{name} {part * 1000:,.0f} ms {part / whole:.0%}" for name, part in parts.items())
            print(f"  {contender.name:16} by part: {shares}")


def keep(found: dict[str, Any], output: Path | None) -> None:
    if output:
        write_atomically(output, json.dumps(found, indent=1).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(run_command(main, StepBenchOptions, __doc__))
