"""Validates `pretrain/doctor.py` on twenty healthy runs and on eleven runs with a planted sickness.

    nice python bench/doctor.py --text DATA --output runs/doctor

Trains by the real commands, each run on one core; rerun the command to add missing runs. Half of the
healthy runs set the thresholds of `pretrain/analysis/health.py`; the other half and the sick runs test them. Read
OUTPUT/doctor.md: sicknesses found, false alarms, and each measure beside its threshold.
"""

import lzma
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import psutil

from foundation.command_line import run_command
from foundation.config import ConfigError, StrictConfig
from foundation.machine import cores
from foundation.markdown_table import markdown_table
from pretrain.analysis.health import Diagnosis, diagnose
from pretrain.analysis.symptoms import Measured

REPOSITORY = Path(__file__).resolve().parents[1]
SIZES = {
    width: f"model.hidden_size={width} model.intermediate_size={4 * width} model.embedding_size={width}"
    f" model.generator_hidden_size={width // 2}"
    for width in (64, 96, 128)
}
REPORTS = "log_every=20 histogram_every=1000 evaluate_every=100 evaluate_sequences=256 checkpoint_every=1000"
SUSPENDED = 0.1
"""Seconds for which the straggling rank is alternately suspended and running."""
HEAD = """\
# Validation of the doctor

```
python bench/doctor.py --text DATA
```

trains real runs by the real commands, each of two layers and at most 500 steps of 32 sequences, with a learned
vocabulary of 2,048, on {cores} CPU cores beside other work (torch {torch}, deepspeed {deepspeed}). Half of the healthy
runs set the thresholds of `pretrain/analysis/health.py`; the other half and the sick runs test them. No run of the
paper's sizes took part: for those the thresholds rest on arithmetic only."""
LIMITS = """\
## Limits

- Three checks changed after a first planted run (seed 5) and are tested on another. `optim.lr=0.1` made no spike but a
  discriminator with one answer, which is measured since. L_D was added for repeated text. HP_Dist with
  `objective.lambda1=0` and `1000`, ended after 420 steps, had ratios up to 5 and 2, and with `objective.temperature=5`
  9.8 under a limit of 10, which then became three times the worst of the ten healthy runs.
- Spikes, a rising loss, skipped fp16 steps (a CPU has none) and [UNK] were tried only in `tests/pretrain/analysis`.
- Text that is not shuffled was not planted: the order of samples is a keyed permutation.
- Slow precision was planted with `ONEDNN_MAX_CPU_ISA=AVX2`, which hides the CPU's bf16 instructions."""
GROUPS = {"sets thresholds": (0, 1), "held back": (2, 3)}
"""The two halves of the healthy runs, with their seeds."""


class DoctorOptions(StrictConfig):
    """The command line of `doctor.py`."""

    text: Path
    """folder with wiki/, books/novels/, languages/hu/ and nltk_data/ (tests: ELECTRA_SAMPLER_DATA)"""
    output: Path = Path("runs/doctor")
    """folder for texts, shards, runs and the report"""


class Planned(NamedTuple):
    """A run to train, with its purpose."""

    shards: str
    options: str
    steps: int = 500
    """Sicknesses of the data or the machine need fewer steps than those of learning."""
    ranks: int = 1
    slowed: int | None = None
    """The rank made to straggle."""
    precision: str = "fp32"
    name: str = ""
    group: str = ""
    """For a healthy run its half, for a sick one the planted sickness."""


def healthy() -> Iterator[Planned]:
    """Yields the twenty healthy runs: four objectives, eight seeds, three sizes, two sources of text, two lengths."""
    for group, seeds in GROUPS.items():
        for number, objective in enumerate(("electra", "hp_loss", "hp_dist", "mlm")):
            for seed in seeds:
                size = (64, 96, 64, 128)[(number + seed) % 4]
                shards = ("wiki64", "wiki128", "novels64")[(2 * number + seed) % 3]
                yield _healthy(group, objective, seed, size, shards)
        yield _healthy(group, "hp_loss", seeds[0] + 10, 64, "wiki64", ranks=2)
        yield _healthy(group, "hp_dist", seeds[1] + 10, 64, "wiki64")


def _healthy(group: str, objective: str, seed: int, size: int, shards: str, ranks: int = 1) -> Planned:
    name = f"{objective}-{size}-{shards}-seed{seed}" + ("-2ranks" if ranks > 1 else "")
    options = f"--objective {objective} --set seed={seed} {SIZES[size]}"
    return Planned(shards, options, ranks=ranks, name=name, group=group)


PLANTED = {
    "generator too good": Planned("wiki64", "--objective electra --set seed=5 objective.mask_keep_fraction=0.98"),
    "generator does not learn": Planned("wiki64", "--objective electra --set seed=5 optim.lr=3e-6"),
    "discriminator on the plateau": Planned(
        "wiki64", "--objective electra --set seed=5 model.relative_bias_init=t5 model.initializer_range=0.02"
    ),
    "sampling head dead": Planned("wiki64", "--objective hp_loss --set seed=5 objective.lambda1=0"),
    "importance ratios exploding": Planned("novels64", "--objective hp_dist --set seed=6 objective.temperature=4"),
    "data repeated or unshuffled": Planned("few64", "--objective electra --set seed=6"),
    "vocabulary does not fit": Planned("hungarian64", "--objective hp_loss --set seed=5", 100),
    "learning rate too high": Planned("wiki64", "--objective electra --set seed=6 optim.lr=0.05", 200),
    "padding waste": Planned("short128", "--objective hp_loss --set seed=5", 100),
    "a rank straggles": Planned("wiki64", "--objective hp_loss --set seed=5", 200, ranks=2, slowed=1),
    "slow precision": Planned("wiki64", "--objective hp_loss --set seed=5", 20, precision="bf16"),
}
"""Sick runs by the finding that must name them. Seed 6 where the check was changed after a run with seed 5."""


def planted() -> Iterator[Planned]:
    """Yields the sick runs, each in the group of its sickness."""
    for name, run in PLANTED.items():
        slug = name.replace(" ", "-")
        yield run._replace(name=f"sick-{slug}", group=name, options=f"{run.options} {SIZES[64]}")


def main(options: DoctorOptions) -> int:
    """Makes missing texts, shards and runs, one at a time, then the report; returns 1 if a run failed."""
    make_texts(options.text, options.output / "text")
    for shards, command in shard_commands(options).items():
        if not (options.output / "shards" / shards / "manifest.json").exists():
            subprocess.run(_words(command), check=True)
    runs = [*planted(), *healthy()]
    for run in runs:
        train(options.output, run)
    page = options.output / "doctor.md"
    page.write_text(report(options.output))
    print(page.read_text())
    return int(not all(is_complete(options.output, run) for run in runs))


def make_texts(source: Path, folder: Path) -> None:
    """Writes the texts: Wikipedia, a small part of it, novels, Hungarian, and one-sentence documents."""
    folder.mkdir(parents=True, exist_ok=True)
    wiki = _head(source / "wiki" / "enwiki-AA-0.xz", 12_000_000)
    wiki = wiki[: wiki.rindex("</doc>")]
    lines = [line for line in wiki.splitlines() if line and not line.startswith(("<doc", "</doc"))]
    hungarian = sorted((source / "languages" / "hu").glob("*.txt.xz"))[:10]
    texts = {
        "wiki": wiki + "</doc>\n",
        "few": "\n\n".join(lines[-60:]),
        "hungarian": "\n\n".join(_head(path, 1_000_000) for path in hungarian),
        "short": "\n\n".join(line.split(". ")[0] for line in lines),
    }
    for name, text in texts.items():
        if not (folder / f"{name}.txt").exists():
            (folder / f"{name}.txt").write_text(text)
    (folder / "novels").mkdir(exist_ok=True)
    for path in sorted((source / "books" / "novels").glob("*.txt.xz"))[:10]:
        (folder / "novels" / path.stem).write_text(_head(path, 1_000_000))


def _head(path: Path, characters: int) -> str:
    with lzma.open(path, "rt", encoding="utf-8-sig") as file:
        return file.read(characters)


def shard_commands(options: DoctorOptions) -> dict[str, str]:
    """Returns the command that builds each folder of shards; learns the vocabulary first if it is missing."""
    output = shlex.quote(str(options.output))
    punkt = shlex.quote(str(options.text / "nltk_data" / "tokenizers" / "punkt_tab" / "english"))
    if not (options.output / "vocab" / "vocab.txt").exists():
        train_vocab = f"data_prep/train_vocab.py --input {output}/text/wiki.txt --output {output}/vocab --size 2048"
        subprocess.run(_words(train_vocab), check=True)
    chosen = {
        "wiki64": ("wiki.txt", 64, 0.02),
        "wiki128": ("wiki.txt", 128, 0.02),
        "novels64": ("novels --documents file", 64, 0.2),
        "few64": ("few.txt", 64, 0.1),
        "hungarian64": ("hungarian.txt", 64, 0.02),
        "short128": ("short.txt", 128, 0.02),
    }
    return {
        shards: f"data_prep/build_shards.py --input {output}/text/{text} --output {output}/shards/{shards}"
        f" --vocab {output}/vocab --punkt {punkt} --seq_length {length} --held_out {held_out} --workers 1"
        for shards, (text, length, held_out) in chosen.items()
    }


def is_complete(output: Path, run: Planned) -> bool:
    return (output / "runs" / run.name / "checkpoints" / f"step-{run.steps:08d}").is_dir()


def train(output: Path, run: Planned) -> None:
    """Trains a run unless it is complete."""
    if is_complete(output, run):
        return
    data, folder = (shlex.quote(str(path)) for path in (output / "shards" / run.shards, output / "runs" / run.name))
    command = (
        f"pretrain/run.py --preset tiny --data {data} --output {folder}"
        f" --deepspeed_config ds_configs/zero1_{run.precision}.json {run.options}"
        f" optim.steps={run.steps} batch_size=32 {REPORTS}"
    )
    words = _words(command)
    if run.ranks > 1:
        with socket.create_server(("127.0.0.1", 0)) as server:  # DeepSpeed's own port may be taken by another run
            port = server.getsockname()[1]
        launcher = str(Path(sys.executable).with_name("deepspeed"))
        words = [launcher, f"--num_gpus={run.ranks}", f"--master_port={port}", *words[1:]]
    started = time.monotonic()
    log = output / "logs" / f"{run.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": path}
    if run.precision == "bf16":
        environment["ONEDNN_MAX_CPU_ISA"] = "AVX2"  # hides the CPU's instructions for bf16
    with log.open("a") as file:
        process = subprocess.Popen(words, cwd=REPOSITORY, env=environment, stdout=file, stderr=file)
        while process.poll() is None:
            if run.slowed is None:
                process.wait()
            else:
                slow_down(process.pid, run.slowed)
    print(f"{run.name}: exit code {process.returncode}, {time.monotonic() - started:.0f} s", flush=True)


def slow_down(launcher: int, rank: int) -> None:
    """Suspends one of the launcher's ranks for `SUSPENDED` seconds, then lets it run for as long."""
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(launcher).children(recursive=True)
        ranks = [process for process in below if f"--local_rank={rank}" in process.cmdline()]
        for process in ranks:
            process.suspend()
        time.sleep(SUSPENDED)
        for process in ranks:
            process.resume()
    time.sleep(SUSPENDED)


def report(output: Path) -> str:
    """Returns the doctor's findings for every complete run, in Markdown."""
    runs = [run for run in (*healthy(), *planted()) if is_complete(output, run)]
    said = {run: _diagnosis(output / "runs" / run.name) for run in runs}
    names = {run: [finding.name for finding in diagnosis.findings] for run, diagnosis in said.items()}
    sick = [run for run in runs if run.group in PLANTED]
    well = [run for run in runs if run.group in GROUPS]
    evidence = {run: "".join(part.evidence for part in said[run].findings if part.name == run.group) for run in sick}
    lines = [
        *(HEAD.format(cores=cores(), torch=version("torch"), deepspeed=version("deepspeed")), ""),
        f"Found: {sum(map(bool, evidence.values()))} of {len(sick)} planted sicknesses. False alarms:"
        f" {sum(bool(names[run]) for run in well)} of {len(well)} healthy runs.",
        *("", "## Planted sicknesses", ""),
        "Each run by `--preset tiny` with these options; then the doctor's first line, and evidence.",
        *(line for run in sick for line in _case(run, _first_line(names[run]), evidence[run])),
        *("", "## Healthy", ""),
        *markdown_table(("run", "half", "diagnosis"), [(run.name, run.group, _first_line(names[run])) for run in well]),
        *("", "## Measures", ""),
        *(
            "The worst value in each group of healthy runs, and that of the run in which the sickness was planted:",
            "",
        ),
        *markdown_table(("measure", "threshold", *GROUPS, "planted"), _thresholds(said)),
        *("", LIMITS),
    ]
    return "\n".join(lines) + "\n"


def _diagnosis(folder: Path) -> Diagnosis:
    try:
        return diagnose(folder)
    except ConfigError as too_early:  # a short sick run in which nothing was found
        return Diagnosis([], [str(too_early)])


def _case(run: Planned, first_line: str, evidence: str) -> tuple[str, ...]:
    options = f"Trained on {run.shards} with `{PLANTED[run.group].options}`."
    return "", f"### {run.group[0].upper()}{run.group[1:]}", "", options, f"Found: **{first_line}**.", evidence


def _first_line(names: list[str]) -> str:
    return "; ".join(names) or "healthy"


def _thresholds(said: dict[Planned, Diagnosis]) -> Iterator[tuple[str, ...]]:
    """Yields, per measure, threshold and worst value: in each half of the healthy runs, and in its sick run."""
    found: dict[str, dict[str, list[Measured]]] = {}
    for run, diagnosis in said.items():
        for answer in diagnosis.judged:
            group = "planted" if run.group == answer.finding.name else run.group
            for part in answer.measured:
                found.setdefault(part.name, {}).setdefault(group, []).append(part)
    for name, groups in found.items():
        first = next(iter(groups.values()))[0]
        worst = max if first.most else min
        values = [worst((part.value for part in groups.get(group, ())), default=None) for group in (*GROUPS, "planted")]
        limit = f"at {'most' if first.most else 'least'} {first.limit:g}"
        yield name, limit, *("-" if value is None else f"{value:.3f}" for value in values)


def _words(command: str) -> list[str]:
    script, *arguments = shlex.split(command)
    return [sys.executable, str(REPOSITORY / script), *arguments]


if __name__ == "__main__":
    sys.exit(run_command(main, DoctorOptions, __doc__))
