"""Export a run's newest checkpoint as Hugging Face folders: the discriminator, and the generator inside it.

    python pretrain/export.py runs/base exported/base

OUT holds the discriminator (`ElectraForPreTraining`) with the tokenizer and a model card, OUT/generator the generator
(`ElectraForMaskedLM`), as safetensors. A run of objective `mlm` has one model, in OUT, an `ElectraForMaskedLM`. With
relative position `AutoModel.from_pretrained(OUT, trust_remote_code=True)` loads them with the code they carry.
"""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from foundation.command_line import POSITIONAL, run_command
from foundation.config import ConfigError, StrictConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pretrain.method.electra import Electra
    from pretrain.method.objectives.objective import Objective
    from pretrain.model.encoder import EncoderConfig

    Part = tuple[str, str, EncoderConfig, dict[str, Tensor]]


class ExportOptions(StrictConfig):
    """The command line of an export."""

    run: Annotated[Path, POSITIONAL]
    """run folder"""
    out: Annotated[Path, POSITIONAL]
    """folder to write"""


def main(options: ExportOptions) -> None:
    from foundation.files import require_folder
    from pretrain.analysis.model_card import model_card
    from pretrain.training.models import load_trained
    from pretrain.training.run_folder import read_run

    if options.out.exists() and any(options.out.iterdir() if options.out.is_dir() else [options.out]):
        raise ConfigError(f"out: {options.out} exists already; name another folder or remove it")
    require_folder(options.out, "out")
    description = read_run(options.run)
    model, step = load_trained(options.run)
    card = model_card(options.run, description, step)
    export(model, description.pad_token_id, options.run / "tokenizer", card, options.out)
    print(f"exported step {step} of {options.run} to {options.out}")


def export(model: "Objective", pad_token_id: int, tokenizer: Path, card: str, out: Path) -> None:
    """Writes the folder, complete or not at all."""
    from data_prep.tokens import WordPiece
    from pretrain.huggingface.folders import save_folder

    word_piece = WordPiece.load(tokenizer)
    unfinished = out.with_name(out.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    for folder, architecture, config, weights in parts_of(model):
        save_folder(unfinished / folder, architecture, config, weights, pad_token_id)
        word_piece.save(unfinished / folder)  # written anew: of what lies in its folder, no file travels
    (unfinished / "README.md").write_text(card)
    shutil.rmtree(out, ignore_errors=True)  # an empty folder that was there before
    unfinished.rename(out)


def parts_of(model: "Objective") -> "list[Part]":
    """Folder inside OUT, Hugging Face class, configuration and weights of each model that is exported."""
    from pretrain.method.electra import Electra
    from pretrain.method.objectives.mlm import MaskedLM

    if isinstance(model, MaskedLM):
        return [(".", "ElectraForMaskedLM", model.electra.config, model.state_dict())]
    assert isinstance(model, Electra)
    return [
        (".", "ElectraForPreTraining", model.discriminator.config, discriminator_weights(model)),
        ("generator", "ElectraForMaskedLM", model.generator.config, generator_weights(model)),
    ]


def discriminator_weights(model: "Electra") -> "dict[str, Tensor]":
    """Under the names of `ElectraForPreTraining`."""
    return _prefixed("electra", model.discriminator) | _prefixed(
        "discriminator_predictions", model.discriminator_predictions
    )


def generator_weights(model: "Electra") -> "dict[str, Tensor]":
    """Under the names of `ElectraForMaskedLM`, whose output matrix is its word embeddings."""
    return (
        _prefixed("electra", model.generator)
        | _prefixed("generator_predictions", model.generator_predictions)
        | _prefixed("generator_lm_head", model.generator_lm_head)
    )


def _prefixed(prefix: str, module: "torch.nn.Module") -> "dict[str, Tensor]":
    return {f"{prefix}.{name}": weight for name, weight in module.state_dict().items()}


if __name__ == "__main__":
    sys.exit(run_command(main, ExportOptions, __doc__))
