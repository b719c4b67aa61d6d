"""A trained model written as Hugging Face folders."""

import shutil
from pathlib import Path

from torch import Tensor, nn

from data_prep.tokens import WordPiece
from pretrain.huggingface.folders import save_folder
from pretrain.method.electra import Electra
from pretrain.method.objectives.mlm import MaskedLM
from pretrain.method.objectives.objective import Objective
from pretrain.model.encoder import EncoderConfig

Part = tuple[str, str, EncoderConfig, dict[str, Tensor]]


def export(model: Objective, pad_token_id: int, tokenizer: Path, card: str, out: Path) -> None:
    """Writes the folder, complete or not at all."""
    word_piece = WordPiece.load(tokenizer)
    unfinished = out.with_name(out.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    for folder, architecture, config, weights in parts_of(model):
        save_folder(unfinished / folder, architecture, config, weights, pad_token_id)
        word_piece.save(unfinished / folder)  # written anew: of what lies in its folder, no file travels
    (unfinished / "README.md").write_text(card)
    shutil.rmtree(out, ignore_errors=True)  # an empty folder that was there before
    unfinished.rename(out)


def parts_of(model: Objective) -> list[Part]:
    """Folder inside OUT, Hugging Face class, configuration and weights of each model that is exported."""
    if isinstance(model, MaskedLM):
        return [(".", "ElectraForMaskedLM", model.electra.config, model.state_dict())]
    assert isinstance(model, Electra)
    discriminator = _prefixed("electra", model.discriminator)
    discriminator |= _prefixed("discriminator_predictions", model.discriminator_predictions)
    generator = _prefixed("electra", model.generator)  # its output matrix is its word embeddings
    generator |= _prefixed("generator_predictions", model.generator_predictions)
    generator |= _prefixed("generator_lm_head", model.generator_lm_head)
    return [
        (".", "ElectraForPreTraining", model.discriminator.config, discriminator),
        ("generator", "ElectraForMaskedLM", model.generator.config, generator),
    ]


def _prefixed(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": weight for name, weight in module.state_dict().items()}
