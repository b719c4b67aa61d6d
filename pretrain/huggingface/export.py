"""A trained model written as Hugging Face folders."""

import json
from pathlib import Path
from typing import Any

from data_prep.tokens import WordPiece
from foundation.files import new_folder
from pretrain.huggingface.folders import save_folder
from pretrain.huggingface.modernbert import save_modernbert
from pretrain.method.objective import Objective
from pretrain.model.modern import ModernConfig

TOKENIZER_SETTINGS = "tokenizer_config.json"


def export(model: Objective, pad_token_id: int, tokenizer: Path, card: str, out: Path) -> None:
    """Writes an exported model with tokenizer and model card to the folder `out`, complete or not at all."""
    word_piece = WordPiece.load(tokenizer)
    with new_folder(out) as unfinished:
        for folder, (architecture, *_) in model.exports.items():
            modules = model.exported(folder)  # of a generator the output matrix is its word embeddings
            encoder: Any = modules["electra"]
            weights = modules.state_dict()
            if isinstance(encoder.config, ModernConfig):
                save_modernbert(unfinished / folder, architecture, encoder.config, weights, word_piece.special)
            else:
                save_folder(unfinished / folder, architecture, encoder.config, weights, pad_token_id)
            files = word_piece.files()  # rewritten: no file in the tokenizer's folder is copied
            longest = {"model_max_length": encoder.config.max_position_embeddings}
            files[TOKENIZER_SETTINGS] = json.dumps(json.loads(files[TOKENIZER_SETTINGS]) | longest, indent=2).encode()
            for name, content in files.items():
                (unfinished / folder / name).write_bytes(content)
        (unfinished / "README.md").write_text(card)
