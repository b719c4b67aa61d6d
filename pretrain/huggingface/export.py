"""A trained model written as Hugging Face folders, in the form of its encoder. A folder is complete or absent."""

from pathlib import Path
from typing import Any

from torch import Tensor

from data_prep.tokens import SubwordTokenizer
from electra_sampler.foundation.files import new_folder
from pretrain.huggingface.forms import DISCRIMINATOR
from pretrain.huggingface.stored import LEARNED, SAMPLING, Sampling, of_sampler, write
from pretrain.method.objective import Objective, ObjectiveConfig


def export(model: Objective, tokenizer: Path, card: str, out: Path, mask_share: float) -> None:
    """Writes an exported model with tokenizer and model card to the folder `out`."""
    subwords = SubwordTokenizer.load(tokenizer)
    with new_folder(out) as unfinished:
        for folder, (architecture, *_) in model.exports.items():
            modules = model.exported(folder)  # of a generator the output matrix is its word embeddings
            config: Any = modules["electra"].config
            weights = modules.state_dict()
            if folder == "generator" and model.objective.name in LEARNED:
                weights |= sampling_head(model)
            record = sampling_of(model.objective, mask_share) if architecture == DISCRIMINATOR else {}
            form = write(unfinished / folder, architecture, config, weights, subwords.special.model_dump(), record)
            inputs = {"model_input_names": form.inputs} if form.inputs else {}
            subwords.save(unfinished / folder, model_max_length=config.max_position_embeddings, **inputs)
        (unfinished / "README.md").write_text(card)


def sampling_head(model: Objective) -> dict[str, Tensor]:
    """Returns the weights of a model's sampling head; empty if it has none."""
    return {name: weight for name, weight in model.state_dict().items() if of_sampler(name)}


def sampling_of(objective: ObjectiveConfig, mask_share: float) -> dict[str, Any]:
    """Returns the record of how an objective draws replacements, for which this share of the word pieces is masked.

    A sampler's own settings are left out: one may have a name of the record's, with another meaning.
    """
    ours: Any = next(kind for kind in type(objective).__mro__ if kind.__module__.startswith("pretrain.method."))
    drawn = objective.model_dump(include=ours.model_fields.keys() & Sampling.model_fields.keys())
    return {SAMPLING: Sampling(objective=objective.name, mask_share=mask_share, **drawn).model_dump()}
