"""Export a run's newest checkpoint as Hugging Face folders: the discriminator, and the generator inside it.

    python pretrain/export.py runs/base exported/base

OUT holds the discriminator (`ElectraForPreTraining`) with the tokenizer and a model card, OUT/generator the generator
(`ElectraForMaskedLM`), as safetensors. A run of objective `mlm` has one model, in OUT, an `ElectraForMaskedLM`. With
relative position `AutoModel.from_pretrained(OUT, trust_remote_code=True)` loads them with the code they carry.

`--format mpnet` writes the discriminator's encoder, or the model of `mlm`, as a stock MPNet, which needs no such code.
The model needs relative position, embeddings as wide as its hidden states, and shards built with `--one_segment`.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from foundation.command_line import POSITIONAL, run_command
from foundation.config import ConfigError, StrictConfig
from foundation.files import require_folder


class ExportOptions(StrictConfig):
    """The command line of an export."""

    run: Annotated[Path, POSITIONAL]
    """run folder"""
    out: Annotated[Path, POSITIONAL]
    """folder to write"""
    format: Literal["electra", "mpnet"] = "electra"
    """mpnet: a stock MPNetModel that needs no code of ours, where the model allows it"""


def main(options: ExportOptions) -> None:
    from pretrain.analysis.model_card import model_card
    from pretrain.huggingface.export import export
    from pretrain.huggingface.mpnet import export_mpnet, require_mpnet
    from pretrain.training.models import load_trained
    from pretrain.training.run_folder import read_run

    if options.out.exists() and any(options.out.iterdir() if options.out.is_dir() else [options.out]):
        raise ConfigError(f"out: {options.out} exists already; name another folder or remove it")
    require_folder(options.out, "out")
    description = read_run(options.run)
    as_mpnet = options.format == "mpnet"
    if as_mpnet:
        require_mpnet(options.run, description.run.model, description.one_segment)
    model, step = load_trained(options.run)
    card, tokenizer = model_card(options.run, description, step, as_mpnet), options.run / "tokenizer"
    if as_mpnet:
        export_mpnet(model, tokenizer, card, options.out)
    else:
        export(model, description.pad_token_id, tokenizer, card, options.out)
    print(f"exported step {step} of {options.run} to {options.out}")


if __name__ == "__main__":
    sys.exit(run_command(main, ExportOptions, __doc__))
