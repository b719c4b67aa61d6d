"""Export a run's newest checkpoint as Hugging Face folders: the discriminator, and the generator inside it.

    python pretrain/export.py runs/base exported/base
    python pretrain/export.py runs/base exported/base --step all

OUT holds the discriminator (`ElectraForPreTraining`) with the tokenizer and a model card; OUT/generator holds the
generator (`ElectraForMaskedLM`). Weights are safetensors. A run with objective `mlm` has only one model, an
`ElectraForMaskedLM` in OUT. A modern encoder leaves as stock `ModernBertForTokenClassification` and
`ModernBertForMaskedLM`. Models with relative position carry their own code:
`AutoModel.from_pretrained(OUT, trust_remote_code=True)` loads them. With `--step all`, OUT holds such a folder for each
checkpoint that the run keeps, and the last lines of output upload each as a revision.
"""

import shlex
from pathlib import Path
from typing import Annotated

from pydantic import Field

from electra_sampler.foundation.command_line import POSITIONAL, Metavar, run_script
from electra_sampler.foundation.config import ConfigError, StrictConfig
from electra_sampler.foundation.files import require_folder
from pretrain.method.registry import GivenObjective


class ExportOptions(StrictConfig):
    """The command line of `export.py`."""

    run: Annotated[Path, POSITIONAL]
    """run folder"""
    out: Annotated[Path, POSITIONAL]
    """folder to write; must be empty or absent"""
    objective: tuple[GivenObjective, ...] = ()
    """sampler of the run, if not built in: FILE.py:CLASS or package.module:CLASS"""
    step: Annotated[str, Metavar("STEP")] = "newest"
    """checkpoint to export: newest, its step, or all, each in a folder of its own"""
    average: Annotated[int, Field(gt=0)] = 1
    """number of checkpoints whose weights are averaged: that one and the ones before it"""
    language: Annotated[str, Field(pattern="^[a-z]{2,3}$")] = "en"
    """code of the text's language, for the model card"""
    license: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")] = "unknown"
    """license that you give the model, for its card: an identifier of the hub, such as cc-by-sa-4.0 or other"""


def main(options: ExportOptions) -> None:
    from pretrain.analysis.model_card import model_card
    from pretrain.huggingface.export import export
    from pretrain.runs.folder import read_run
    from pretrain.runs.models import choose_checkpoints, load_checkpoint, load_trained

    if options.out.exists() and any(options.out.iterdir() if options.out.is_dir() else [options.out]):
        raise ConfigError(f"out: {options.out} exists already; name another folder or remove it")
    require_folder(options.out, "out")
    if options.step == "all" and options.average > 1:
        raise ConfigError(
            f"average: got {options.average} with --step all, whose first checkpoints have too few before them; name"
            " one step"
        )
    description, every = read_run(options.run), options.step == "all"
    kept = choose_checkpoints(options.run, ("all",)) if every else []
    models = ((load_checkpoint(description, checkpoint), checkpoint.step) for checkpoint in kept)
    for model, step in models if every else [load_trained(options.run, options.step, options.average)]:
        out = options.out / f"step-{step:08d}" if every else options.out
        card = model_card(options.run, description, step, options.language, options.license, options.average)
        export(model, options.run / "tokenizer", card, out, description.mask_share)
        averaged = f", averaged over {options.average} checkpoints" if options.average > 1 else ""
        print(f"exported step {step} of {options.run} to {out}{averaged}")
    if options.step == "newest" and step < description.run.optim.steps:
        print(f"the run is unfinished: this is step {step:,} of {description.run.optim.steps:,}")
    if every:
        print("to upload: the newest, then each as a revision")
        print(f"hf upload OWNER/NAME {shlex.quote(str(out))}")
    for checkpoint in kept:
        name = f"step-{checkpoint.step:08d}"
        print(f"hf upload OWNER/NAME {shlex.quote(str(options.out / name))} --revision {name}")


if __name__ == "__main__":
    run_script(main)
