"""Prints what a folder of shards holds, checks it, and shows some of its sequences.

python data_prep/inspect_shards.py data/wikibooks --verify --show 3
"""

import sys
from pathlib import Path

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from typing import Annotated

import numpy as np
from pydantic import Field

from data_prep.command_line import POSITIONAL, run_command
from data_prep.config import StrictConfig
from data_prep.inspection import (
    Figures,
    checksum_problems,
    megatron_problems,
    problems_of,
    read_rows,
)
from data_prep.manifest import HELD_OUT_NAME, MANIFEST_NAME, Ledger, Manifest, load_manifest
from data_prep.pipeline import TOKENIZER_NAME
from data_prep.progress import Progress
from data_prep.tokens import CONTINUATION, WordPiece

_PROBLEMS_SHOWN = 20
_SAMPLE = 4096  # sequences looked at without --verify
_REVERSE, _PLAIN = "\033[7m", "\033[0m"  # ANSI: swap foreground and background; end


class InspectOptions(StrictConfig):
    """Options of inspect_shards."""

    folder: Annotated[Path, POSITIONAL]
    """shard folder"""
    verify: bool = False
    """check every checksum, sequence and mask, also through megatron-core's reader"""
    show: int = Field(0, ge=0)
    """sequences to print, masked tokens marked"""


def main(options: InspectOptions) -> int:
    """Prints the figures of a folder and of its held-out part; returns 1 where a check fails."""
    problems = _inspect(options.folder, options)
    if (options.folder / HELD_OUT_NAME / MANIFEST_NAME).is_file():
        print()
        problems += _inspect(options.folder / HELD_OUT_NAME, options)
    for problem in problems[:_PROBLEMS_SHOWN]:
        print(f"inspect_shards: {problem}", file=sys.stderr)
    if len(problems) > _PROBLEMS_SHOWN:
        print(f"inspect_shards: and {len(problems) - _PROBLEMS_SHOWN} more problems", file=sys.stderr)
    if options.verify:
        print(f"\n{len(problems)} problems: build the shards again" if problems else "\nverified: no problem found")
    return 1 if problems else 0


def _inspect(folder: Path, options: InspectOptions) -> list[str]:
    manifest = load_manifest(folder)
    _print_manifest(folder, manifest)
    figures, problems = Figures(), []
    if options.verify:
        problems = _verify(folder, manifest, figures)
    else:
        for rows in read_rows(folder, manifest.shards[0], manifest, _SAMPLE):
            figures.add(rows, manifest)
    _print_figures(figures, manifest)
    if options.show:
        _show(folder, manifest, options.show)
    return problems


def _verify(folder: Path, manifest: Manifest, figures: Figures) -> list[str]:
    """Everything that can be found wrong with a folder; counts its sequences into `figures`."""
    problems = []
    with Progress(sum(sum(shard.sizes.values()) for shard in manifest.shards), "verify") as progress:
        for shard in manifest.shards:
            found = checksum_problems(folder, shard)
            if not found:
                for rows in read_rows(folder, shard, manifest):
                    found += problems_of(rows, manifest)
                    figures.add(rows, manifest)
                found += megatron_problems(folder, shard)
            problems += [f"{folder / shard.name}: {problem}" for problem in found]
            progress.advance(sum(shard.sizes.values()))
    if not problems and (figures.sequences, figures.tokens) != (
        manifest.totals.sequences,
        manifest.totals.tokens,
    ):
        problems.append(f"{folder}: manifest.json counts other sequences or tokens than the shards hold")
    if not all(ledger.balances for ledger in _ledgers(manifest).values()):
        problems.append(f"{folder}: the books in manifest.json do not balance")
    return problems


def _ledgers(manifest: Manifest) -> dict[str, Ledger]:
    books = manifest.books
    return {"documents": books.documents, "characters": books.characters, "word pieces": books.word_pieces}


def _print_manifest(folder: Path, manifest: Manifest) -> None:
    totals = manifest.totals
    size = sum(sum(shard.sizes.values()) for shard in manifest.shards)
    print(f"{folder}: {totals.sequences:,} sequences in {len(manifest.shards)} shards, {size / 1e6:,.1f} MB")
    for name, ledger in _ledgers(manifest).items():
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in ledger.dropped.items() if count) or "none"
        print(
            f"  {name:<12} {ledger.read:>15,} read = {ledger.train:,} to train on + "
            f"{ledger.held_out:,} held out + dropped: {dropped}"
        )
    drawn = " ".join(f"{count / max(1, sum(totals.ngrams)):.4f}" for count in totals.ngrams)
    asked = " ".join(f"{chance:.4f}" for chance in manifest.config.ngram)
    if manifest.books.invalid_utf8:
        print(f"  malformed UTF-8 {manifest.books.invalid_utf8:,} times, each replaced by U+FFFD")
    print(f"  unknown words   {totals.unknown_share:.4%} of the word pieces")
    print(f"  padding         {totals.padding_share:.2%} of {totals.sequences:,} x {manifest.seq_length}")
    print(f"  n-grams         {drawn} drawn, {asked} asked for")


def _print_figures(figures: Figures, manifest: Manifest) -> None:
    total = max(1, int(figures.runs.sum()))
    shares = [f"{length}: {count / total:.1%}" for length, count in enumerate(figures.runs[:9])][1:]
    print(f"  of {figures.sequences:,} sequences and {manifest.mask_copies} masks each:")
    print(f"  two segments    {figures.pairs / max(1, figures.sequences):.1%}")
    print(f"  masked          {figures.masked / max(1, figures.mask_sites):.4%} of the tokens")
    print(f"  masked runs     {' '.join(shares)}")


def _show(folder: Path, manifest: Manifest, count: int) -> None:
    """Prints the first sequences, the tokens of their first mask [marked], or reversed on a terminal."""
    tokenizer = WordPiece.load(folder / TOKENIZER_NAME)
    for rows in read_rows(folder, manifest.shards[0], manifest, count):
        for number in range(min(count - rows.first, len(rows.lengths))):
            length = int(rows.lengths[number])
            tokens = [tokenizer.tokens[token] for token in rows.ids[number, :length]]
            print(f"\n{manifest.shards[0].name}, sequence {rows.first + number}, {length} tokens")
            print(_marked(tokens, rows.masked[number, 0]))


def _marked(tokens: list[str], masked: np.ndarray) -> str:
    """The text of the tokens, `##` pieces joined to their word where both or neither are masked."""
    opening, closing = (_REVERSE, _PLAIN) if sys.stdout.isatty() else ("[", "]")
    words: list[str] = []
    for number, token in enumerate(tokens):
        joined = token.startswith(CONTINUATION) and number > 0
        text = token.removeprefix(CONTINUATION) if joined else token
        text = f"{opening}{text}{closing}" if masked[number] else text
        if joined and words:
            words[-1] += text
        else:
            words.append(text)
    return " ".join(words)


if __name__ == "__main__":
    sys.exit(run_command(main, InspectOptions, __doc__))
