"""Scores minimal pairs with pre-trained models, without fine-tuning.

Shape letters: B rows of a batch, L length, H hidden size, V vocabulary, P pairs.
"""

import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic_core import from_json
from torch import Tensor, nn
from tqdm import tqdm

from finetune.running.model_folder import load_tokenizer
from foundation.config import ConfigError, shown
from foundation.files import require_file_or_folder, require_folder, write_atomically
from foundation.markdown_table import markdown_table
from foundation.stats import mean, resample
from pretrain.huggingface.folders import fill, find_folder, read_encoder_config, read_weights
from pretrain.model import cpu_ops
from pretrain.model.encoder import ElectraEncoder
from pretrain.model.heads import DiscriminatorHead, VocabularyScores, VocabularyTransform

TOKENS_PER_BATCH = 8192
"""Tokens per batch; a base model then needs half a gigabyte for activations and scores."""
GROUPS = ("field", "term", "paradigm")
KEYS = ("sentence_good", "sentence_bad", "field", "linguistics_term", "UID")
"""BLiMP's keys for the fields of `Pair`, in order."""


class Pair(NamedTuple):
    """An acceptable and a minimally different unacceptable sentence, with BLiMP's field, term and paradigm."""

    good: str
    bad: str
    field: str
    term: str
    paradigm: str


def read_pairs(folder: Path) -> list[Pair]:
    """Reads the pairs of every .jsonl file in a folder, or in its BLiMP.zip.

    Raises:
        ConfigError: there is no such file, or it is damaged.
    """
    archive = folder / "BLiMP.zip"
    for path in folder.glob("*"):
        require_file_or_folder(path, "data")  # a pipe would be read for ever
    try:
        inside = zipfile.Path(archive, "data/") if archive.is_file() else folder
        files = {path.name: path.read_bytes() for path in inside.iterdir() if path.name.endswith(".jsonl")}
        pairs = [parse_pair(line) for _, content in sorted(files.items()) for line in content.splitlines()]
    except Exception as error:  # half a dozen types, by the damage; encryption is one more
        raise ConfigError(f"data: {folder} cannot be read as BLiMP ({error!r}); download it again") from None
    if not pairs:
        raise ConfigError(f"data: {folder} holds no pairs; name the folder of BLiMP's .jsonl files or of BLiMP.zip")
    return pairs


def parse_pair(line: bytes) -> Pair:
    entry = from_json(line)
    good, bad, field, term, paradigm = (str.strip(entry[key]) for key in KEYS)
    return Pair(good, bad, field.replace("/", "_"), term, paradigm)  # one field is spelled in two ways


class Scorer(NamedTuple):
    """A model that scores sentences."""

    name: str
    model: Any
    tokenizer: Any

    def scores(self, sentences: Iterable[str]) -> dict[str, float]:
        """Returns the score of each sentence, in nats; sentences with the same tokens have the same score.

        Raises:
            ConfigError: a sentence has more tokens than the model has positions.
        """
        tokens = {sentence: tuple(self.tokenizer(sentence)["input_ids"]) for sentence in sentences}
        longest = max(tokens, key=lambda sentence: len(tokens[sentence]))
        positions = self.model["electra"].config.max_position_embeddings
        if len(tokens[longest]) > positions:
            raise ConfigError(
                f"data: {shown(longest)} has {len(tokens[longest])} tokens; expected at most {positions}, the positions"
                f" of {self.name}; leave it out"
            )
        scores: dict[tuple[int, ...], float] = {}
        device = next(self.model.parameters()).device
        batches = [*batches_by_length({*tokens.values()})]
        for batch in tqdm(batches, desc=self.name, unit=" batches", disable=None, leave=False):
            scores |= zip(batch, self.score(torch.tensor(batch, device=device)).tolist(), strict=True)
        return {sentence: scores[ids] for sentence, ids in tokens.items()}

    def hidden(self, ids_BL: Tensor) -> Tensor:
        return self.model["electra"](ids_BL, torch.ones_like(ids_BL), torch.zeros_like(ids_BL))

    def score(self, ids_BL: Tensor) -> Tensor:
        """Returns the score of each row of ids [B, L] without padding: a sum over the tokens between [CLS] and [SEP].

        A discriminator with logits d sums log sigmoid(-d), the log-probability of "original". A generator masks one
        token at a time and sums the log-probabilities of these tokens.
        """
        if "discriminator_predictions" in self.model:
            d_BL = self.model["discriminator_predictions"](self.hidden(ids_BL))
            return F.logsigmoid(-d_BL[:, 1:-1].double()).sum(1)
        score_B = torch.zeros(len(ids_BL), dtype=torch.float64, device=ids_BL.device)
        for position in range(1, ids_BL.shape[1] - 1):
            masked_BL = ids_BL.clone()
            masked_BL[:, position] = self.tokenizer.mask_token_id
            projected_BE = self.model["generator_predictions"](self.hidden(masked_BL)[:, position])
            logits_BV = self.model["generator_lm_head"](projected_BE, self.model["electra"].embeddings.word_embeddings)
            score_B -= F.cross_entropy(logits_BV, ids_BL[:, position], reduction="none")
        return score_B


def batches_by_length(sequences: Iterable[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Yields batches of sequences of equal length, so that none is padded."""
    for length, group in groupby(sorted(sequences, key=lambda one: (len(one), one)), key=len):
        alike, size = list(group), max(1, TOKENS_PER_BATCH // length)
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def open_scorers(name: str, random_weights: bool, discriminator_only: bool = False) -> Iterator[Scorer]:
    """Yields the model of a folder, then the generator in it, if any, unless `discriminator_only`; on the GPU if any.

    Raises:
        ConfigError: there is no such model, or it is neither a discriminator nor a generator.
    """
    folder = find_folder(name)
    inside = [folder / "generator"] if (folder / "generator").is_dir() and not discriminator_only else []
    for path, label in zip([folder, *inside], (name, f"{name}/generator"), strict=False):
        weights, config = read_weights(path), read_encoder_config(path)
        if any(weight.startswith("discriminator_predictions.") for weight in weights):
            heads: dict[str, nn.Module] = {"discriminator_predictions": DiscriminatorHead(config)}
        elif any(weight.startswith("generator_predictions.") for weight in weights):
            heads = {
                "generator_predictions": VocabularyTransform(config),
                "generator_lm_head": VocabularyScores(config),
            }
            weights.pop("generator_lm_head.weight", None)  # the word embeddings, stored twice
        else:
            raise ConfigError(f"models: {path} has no pre-training head; expected an export, not a fine-tuned model")
        model = nn.ModuleDict({"electra": ElectraEncoder(config), **heads}).eval()
        if not random_weights:
            fill(model, weights, path)
        label += " (random weights)" if random_weights else ""
        yield Scorer(label, model.to("cuda" if torch.cuda.is_available() else "cpu"), load_tokenizer(path))


def accuracies(right_P: np.ndarray, pairs: Sequence[Pair]) -> dict[str, dict[str, list[float]]]:
    """Returns the percentage of pairs judged right, with its 95% interval: in all, and by field, term and paradigm."""
    found: dict[str, dict[str, list[float]]] = {"all": {"all": interval(right_P)}}
    for group in GROUPS:
        names_P = np.array([getattr(pair, group) for pair in pairs])
        found[group] = {name: interval(right_P[names_P == name]) for name in sorted({*names_P.tolist()})}
    return found


def interval(right_P: np.ndarray) -> list[float]:
    return resample(np.stack((100 * right_P, np.ones_like(right_P))), mean).interval() or []


@torch.inference_mode()
def evaluate(
    models: Sequence[str], data: Path, random_weights: bool, output: Path, discriminator_only: bool = False
) -> str:
    """Scores every model on every pair, writes blimp.json, blimp.md and blimp.npz (`right` [models, pairs]: 1 right,
    .5 a tie, 0 wrong), and returns the table.

    Raises:
        ConfigError: the data or a model cannot be read.
    """
    pairs = read_pairs(data)
    require_folder(output)
    if not torch.cuda.is_available():
        cpu_ops.use()
    results, right = {}, {}
    for name in models:
        for random in (False, True) if random_weights else (False,):
            for scorer in open_scorers(name, random, discriminator_only):
                score_of = scorer.scores({sentence for pair in pairs for sentence in (pair.good, pair.bad)})
                good_P = np.array([score_of[pair.good] for pair in pairs])
                bad_P = np.array([score_of[pair.bad] for pair in pairs])
                right[scorer.name] = (good_P > bad_P) + 0.5 * (good_P == bad_P)
                results[scorer.name] = accuracies(right[scorer.name], pairs)
    output.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, right=np.stack([*right.values()]).astype(np.float32))
    write_atomically(output / "blimp.npz", content.getvalue())
    write_atomically(output / "blimp.json", json.dumps({"pairs": len(pairs), "models": results}, indent=1).encode())
    table = "\n".join(report(len(pairs), results))
    write_atomically(output / "blimp.md", (table + "\n").encode())
    return table


def report(pairs: int, results: dict[str, dict[str, dict[str, list[float]]]]) -> Iterator[str]:
    """Yields the lines of a Markdown table of all models by field and term."""
    yield f"# BLiMP, {pairs:,} pairs: percent right (95% interval), ties half; 50 is chance\n"
    shapes = next(iter(results.values()))
    rows = []
    for group in ("all", "field", "term"):
        for name in shapes[group]:
            cells = [f"{v:.1f} ({low:.1f}–{high:.1f})" for v, low, high in (r[group][name] for r in results.values())]
            rows.append([f"**{name}**" if group != "term" else name, *cells])
    yield from markdown_table(["", *results], rows)
