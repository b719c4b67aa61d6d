"""Speed of our pre-training step against Hugging Face's classes and against the machine's limit, in one run.

    python bench/step.py --preset small --batch_size 16 --seq_length 128 --dtype fp32

Peers (bench/peers/electra_step.py): the ELECTRA step with Hugging Face's classes, eager and compiled. Ours runs under
DeepSpeed's engine, ZeRO-1, with fp32 master weights in bf16 and fp16, which the peers do without. All train on the same
random ids, each in a process of its own, and take turns, so that a machine whose speed drifts drifts for all; figures
are medians of the counted steps. The limit is the fastest large square product of PyTorch in the same precision,
measured between the turns; shares count the operations of our step (`estimates.flops_per_token`), for the peers too.
"""

import statistics
import sys
from pathlib import Path
from typing import Annotated

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pydantic import Field

from bench.contender import CONTENDERS, OURS, Contender, Name, StepOptions, serve
from bench.matrix_rate import matrix_rates
from data_prep.command_line import HIDDEN, run_command


class StepBenchOptions(StepOptions):
    """The command line of the benchmark."""

    steps: int = Field(3, ge=1)
    """steps counted of a turn, after one that is not"""
    turns: int = Field(2, ge=1)
    """turns of each, after one that is not counted"""
    contenders: tuple[Name, ...] = CONTENDERS
    """who takes part: Hugging Face's eager and compiled, and our objectives"""
    serve: Annotated[Name | None, HIDDEN] = None


def main(options: StepBenchOptions) -> None:
    if options.serve:
        serve(options.serve, options)
        return
    contenders = [Contender(name, options) for name in options.contenders]
    rates = take_turns(contenders, options)
    for contender in contenders:
        contender.finish()
    report(contenders, rates, options)


def take_turns(contenders: list[Contender], options: StepBenchOptions) -> dict[str, float]:
    """Has each contender step in turn; the fastest matrix rates of those measured between the turns."""
    rates: list[dict[str, float]] = []
    for turn in range(1 + options.turns):
        for contender in contenders:
            contender.steps(1 + options.steps if turn else 1)
        rates.append(matrix_rates(options.dtype))
    return {name: max(rate[name] for rate in rates) for name in rates[0]}


def report(contenders: list[Contender], rates: dict[str, float], options: StepBenchOptions) -> None:
    tokens, limit = options.batch_size * options.seq_length, max(rates.values())
    shape = f"{options.preset}, {options.batch_size} x {options.seq_length}, {options.dtype}"
    products = ", ".join(f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in rates.items())
    print(f"{shape}, {contenders[0].machine}; square products: {products}")
    seconds = {contender.name: statistics.median(contender.seconds) for contender in contenders}
    for contender in contenders:
        own = seconds[contender.name]
        ratios = "".join(f"  {seconds[peer] / own:5.2f}x {peer}" for peer in ("eager", "compiled") if peer in seconds)
        speed = f"{own * 1000:9.1f} ms {tokens / own:11,.0f} tokens/s{ratios}"
        share = f"{contender.flops / own / limit:5.1%} of the limit"
        print(f"  {contender.name:16} {speed}  {share}  {contender.peak_mb:7,.0f} MB")
    for contender in contenders:
        if contender.name in OURS:
            total = sum(contender.parts.values())
            parts = ", ".join(f"{name} {part / total:.0%}" for name, part in contender.parts.items())
            print(f"  {contender.name:16} by part: {parts}")


if __name__ == "__main__":
    sys.exit(run_command(main, StepBenchOptions, __doc__))
