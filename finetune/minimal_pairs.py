"""Accuracy on minimal pairs of sentences, by a model's scores; shape letter: P pairs."""

import io
import itertools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic_core import from_json

from electra_sampler.foundation.config import ConfigError, explained
from electra_sampler.foundation.files import UNREADABLE, files_in, require_folder, require_own, write_atomically
from electra_sampler.foundation.markdown_table import markdown_table
from electra_sampler.foundation.stats import mean, resample
from finetune.scoring import Kind, Scorer, open_scorer

GROUPS = ("field", "term", "paradigm")
ARCHIVE, FILES = "BLiMP.zip", re.compile(r"(?:data/)?[^/.][^/]*\.jsonl")
"""Names of BLiMP's archive, and of its files, there or in a folder."""
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
    pairs = []
    kinds = (*UNREADABLE, ValueError, LookupError, TypeError)  # or a line holds anything else than a pair
    with explained(f"data: {folder} cannot be read as BLiMP", "download it again", kinds):
        for _, content in files_in(folder, FILES, "data", ARCHIVE):
            for line in filter(str.strip, content.decode("utf-8-sig").split("\n")):
                entry = from_json(line)
                good, bad, field, term, paradigm = (str.strip(entry[key]) for key in KEYS)
                pairs.append(Pair(good, bad, field.replace("/", "_"), term, paradigm))  # one field has two spellings
    if not pairs:
        raise ConfigError(f"data: {folder} holds no pairs; name the folder of BLiMP's .jsonl files or of BLiMP.zip")
    return pairs


def accuracies(right_P: np.ndarray, pairs: Sequence[Pair]) -> dict[str, dict[str, list[float]]]:
    """Returns the percentage of pairs judged right, with its 95% interval: in all, and by field, term and paradigm."""
    found: dict[str, dict[str, list[float]]] = {"all": {"all": interval(right_P)}}
    for group in GROUPS:
        names_P = np.array([getattr(pair, group) for pair in pairs])
        found[group] = {name: interval(right_P[names_P == name]) for name in sorted({*names_P.tolist()})}
    return found


def interval(right_P: np.ndarray) -> list[float]:
    return resample(np.stack((100 * right_P, np.ones_like(right_P))), mean).interval() or []


def evaluate(
    models: Sequence[str],
    data: Path,
    score: Collection[Kind],
    generator: str | None,
    mask_share: float | None,
    random_weights: bool,
    output: Path,
) -> str:
    """Scores every model on every pair, writes blimp.json, blimp.md and blimp.npz (`right` [scores, pairs]: 1 right,
    .5 a tie, 0 wrong), and returns the table.

    Raises:
        ConfigError: the data or a model cannot be read, or `output` holds results of other models or scores.
    """
    pairs = read_pairs(data)
    require_folder(output)
    scored = " ".join((*models, *score))
    for file, mark in {"md": "# BLiMP, ", "npz": "right.npy", "json": f'"scored": {json.dumps(scored)}'}.items():
        require_own(output / f"blimp.{file}", mark)
    for name in models[1:]:  # a mistake in a later name must not cost the scores of the first
        open_scorer(name, score, generator, mask_share)
    wanted = itertools.product(models, (False, True) if random_weights else (False,))
    scorers = (open_scorer(name, score, generator, mask_share, random) for name, random in wanted)
    right = dict(entry for scorer in scorers for entry in judged(scorer, pairs))
    results = {label: accuracies(right_P, pairs) for label, right_P in right.items()}
    content = io.BytesIO()
    np.savez_compressed(content, right=np.stack([*right.values()]).astype(np.float32))
    write_atomically(output / "blimp.npz", content.getvalue())
    write_atomically(
        output / "blimp.json",
        json.dumps({"scored": scored, "pairs": len(pairs), "models": results}, indent=1).encode(),
    )
    table = "\n".join(report(len(pairs), results))
    write_atomically(output / "blimp.md", (table + "\n").encode())
    return table


def judged(scorer: Scorer, pairs: Sequence[Pair]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields, for each kind of score, a label and which pairs it judges right, [P]; a tie is half right."""
    scores = scorer.scores({sentence for pair in pairs for sentence in (pair.good, pair.bad)})
    for kind in scorer.kinds:
        good_P = np.array([scores[pair.good][kind].sum() for pair in pairs])
        bad_P = np.array([scores[pair.bad][kind].sum() for pair in pairs])
        yield f"{scorer.name} {kind}", (good_P > bad_P) + 0.5 * (good_P == bad_P)


def report(pairs: int, results: dict[str, dict[str, dict[str, list[float]]]]) -> Iterator[str]:
    """Yields the lines of a Markdown table of all models by field and term."""
    yield f"# BLiMP, {pairs:,} pairs: percent right (95% interval), ties half; 50 is chance\n"
    shapes = next(iter(results.values()))
    rows = (
        [
            name if group == "term" else f"**{name}**",
            *(f"{v:.1f} ({low:.1f}–{high:.1f})" for v, low, high in (one[group][name] for one in results.values())),
        ]
        for group in ("all", "field", "term")
        for name in shapes[group]
    )
    yield from markdown_table(["", *results], rows)
