"""The commands of a study, as a user would type them: one for the shards, then one or more for each run and cell."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.study.file import Probe, Row, Study
from bench.study.jobs import Job

CHECKPOINTS = 6
"""Checkpoints saved in each run."""


class Sources(NamedTuple):
    """Paths of the text and of the data for fine-tuning and BLiMP."""

    input: tuple[str, ...]
    punkt: Path | None
    data_dir: Path
    squad: Path
    blimp: Path


def cell_name(row: Row, seed: int) -> str:
    """Returns the name of a cell's files and folders."""
    return f"{row.folder}-seed{seed}"


class Commands:
    """The commands of a study that writes to the folder `output`."""

    def __init__(self, study: Study, sources: Sources, output: Path) -> None:
        self.study, self.sources, self.folder = study, sources, output
        self.output = shlex.quote(str(output))
        reference = study.reference
        self.reference = cell_name(study.row(reference.row), reference.seed) if reference else None

    def shards(self) -> Iterator[Job]:
        """Yields the commands that make the vocabulary and the shards."""
        text, vocab = shlex.join(self.sources.input), shlex.quote(str(self.folder / (self.study.vocab or "vocab")))
        options = f" --punkt {shlex.quote(str(self.sources.punkt))}" if self.sources.punkt else ""
        if self.study.language:
            text, vocab = f"{self.output}/language/text", f"{self.output}/language/vocab"
            options += " --one_segment --held_out .02"
            yield Job("language", f"python bench/language.py write {self.output}/language")
        elif self.study.vocab_size:
            vocabulary = f"--input {text} --output {vocab} --size {self.study.vocab_size}"
            yield Job("vocabulary", f"python data_prep/train_vocab.py {vocabulary}")
        shards = f"--input {text} --output {self.output}/shards --vocab {vocab}{options}"
        yield Job("shards", f"python data_prep/build_shards.py {shards} --seq_length {self.study.seq_length}")

    def cell(self, row: Row, seed: int) -> Iterator[Job]:
        """Yields the commands of one cell."""
        name = cell_name(row, seed)
        run, exported = f"{self.output}/runs/{name}", f"{self.output}/exported/{name}"
        oracle = self.study.oracle_sequences if row.has_generator else 0
        named = f" --objective {shlex.quote(row.sampler_file)}" if row.sampler_file else ""
        crossed = f" {self.output}/runs/{self.reference}" if self.reference else ""
        yield self.training(row, seed)
        if self.study.language:
            yield Job(
                f"language-{name}", f"python bench/language.py measure {self.output}/language --runs {run}{named}"
            )
        yield Job(
            f"evaluate-{name}",
            f"python pretrain/evaluate.py {run}{crossed}"
            f" --sequences {self.study.held_out_sequences} --oracle_sequences {oracle}"
            f" --output {self.output}/evaluation/{name}{named}",
        )
        export = f"python pretrain/export.py {run} {exported}{named}"
        yield Job(f"export-{name}", export, self.folder / "exported" / name)
        if self.study.blimp:
            data = shlex.quote(str(self.sources.blimp))
            kinds = self.study.blimp if row.has_generator else ("discriminator",)
            yield Job(
                f"blimp-{name}",
                f"python finetune/blimp.py {exported} --score {' '.join(kinds)} --data {data}"
                f" --output {self.output}/blimp/{name}",
            )
        for probe in self.study.probes:
            yield Job(f"{probe.task}-{name}", self.probe(probe, exported, name))

    def training(self, row: Row, seed: int) -> Job:
        """Returns the command that pre-trains a row; equal seeds give equal initial weights, order and masks."""
        study, name = self.study, cell_name(row, seed)
        steps = row.steps or study.steps
        every = max(1, steps // CHECKPOINTS)
        objective = f"--row {shlex.quote(row.row)}" if row.row else f"--objective {row.objective}"
        if models := row.init_from or study.init_from:
            objective += f" --init_from {shlex.join(str(self.folder / model) for model in models)}"
        if study.deepspeed_config:
            objective += f" --deepspeed_config {shlex.quote(study.deepspeed_config)}"
        settings = (
            *(f"seed={seed}", f"optim.steps={steps}", f"optim.warmup_steps={study.warmup_steps}"),
            *(f"checkpoint_every={every}", "keep_checkpoints=1", f"evaluate_every={every}"),
            *((f"keep_every={every}",) if study.language else ()),
            *(*study.set, *row.set),
        )
        return Job(
            f"train-{name}",
            f"python pretrain/run.py --preset {row.preset or study.preset} {objective} --data {self.output}/shards"
            f" --output {self.output}/runs/{name} --set {' '.join(map(shlex.quote, settings))}",
        )

    def probe(self, probe: Probe, exported: str, name: str) -> str:
        """Returns the command that fine-tunes one discriminator on one task."""
        squad, tagging = probe.task == "SQuAD", probe.script == "run_tagging.py"
        folder = self.sources.squad if squad else self.sources.data_dir / (probe.task if tagging else "")
        task = "" if squad else f" --task {probe.task}"
        return (
            f"python finetune/{probe.script}{task} --model {exported} --data_dir {shlex.quote(str(folder))}"
            f" --output {self.output}/probes/{name}/{probe.folder}"
            f" --seeds {' '.join(map(str, probe.seeds))} --epochs {probe.epochs}"
            + "".join(f" {shlex.quote(option)}" for option in probe.options)
        )
