"""Prints what a folder of shards holds, checks it, and shows some of its sequences.

python data_prep/inspect_shards.py data/wikibooks --verify --show 3
"""

import sys
from pathlib import Path

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import os
from typing import Annotated

import numpy as np
from pydantic import Field

from data_prep.command_line import POSITIONAL, printable, run_command
from data_prep.config import StrictConfig
from data_prep.inspection import (
    Figures,
    checksum_problems,
    megatron_problems,
    problems_of,
    read_rows,
    sample_rows,
    tokenizer_problems,
)
from data_prep.manifest import HELD_OUT_NAME, MANIFEST_NAME, Books, Ledger, Manifest, load_manifest
from data_prep.mask_statistics import MaskStatistics
from data_prep.progress import Progress
from data_prep.records import LOG_NAME, RecordLog
from data_prep.tokens import CONTINUATION, SPECIAL_TOKENS, TOKENIZER_NAME, WordPiece

_PROBLEMS_SHOWN = 20
_INPUTS_SHOWN = 20
_BLOCKS, _BLOCK = 64, 64  # without --verify: so many blocks of so many sequences are looked at
_MARK, _FAINT, _PLAIN = "\033[30;43m", "\033[2m", "\033[0m"  # ANSI: black on yellow; faint; end
_PARTS = 8  # of a sequence, for the rate by position


class InspectOptions(StrictConfig):
    """Options of inspect_shards."""

    takes_any_name = True

    folder: Annotated[Path, POSITIONAL]
    """shard folder"""
    verify: bool = False
    """check every checksum, sequence and mask, also through megatron-core's reader"""
    show: int = Field(0, ge=0)
    """sequences to print, masked tokens marked"""
    figure: Path | None = None
    """PNG to write: where the masks fall"""


def main(options: InspectOptions) -> int:
    """Prints the figures of a folder and of its held-out part; returns 1 where a check fails."""
    try:
        return _inspect_all(options)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"inspect_shards: stopped: {printable(str(error))}; mend it and run again", file=sys.stderr)
        return 1


def _inspect_all(options: InspectOptions) -> int:
    problems = _inspect(options.folder, options)
    if (options.folder / HELD_OUT_NAME / MANIFEST_NAME).is_file():
        print()
        problems += _inspect(options.folder / HELD_OUT_NAME, options)
    for problem in problems[:_PROBLEMS_SHOWN]:
        print(f"inspect_shards: {printable(problem)}", file=sys.stderr)
    if len(problems) > _PROBLEMS_SHOWN:
        print(f"inspect_shards: and {len(problems) - _PROBLEMS_SHOWN} more problems", file=sys.stderr)
    if options.verify:
        repair = "rerun build_shards.py with its options, which repairs the folder"
        print(f"\n{len(problems)} problems: {repair}" if problems else "\nverified: no problem found")
    return 1 if problems else 0


def _inspect(folder: Path, options: InspectOptions) -> list[str]:
    manifest = load_manifest(folder)
    _print_manifest(folder, manifest)
    tokenizer = WordPiece.load(folder / TOKENIZER_NAME)
    expected = manifest.totals.sequences if options.verify else min(manifest.totals.sequences, _BLOCKS * _BLOCK)
    figures, masks = Figures(), MaskStatistics(expected)
    problems: list[str] = []
    if options.verify:
        problems = _verify(folder, manifest, tokenizer, figures, masks)
    else:
        for rows in sample_rows(folder, manifest, _BLOCKS, _BLOCK):
            figures.add(rows, manifest)
            masks.add(rows, manifest, tokenizer)
    if not problems:
        _print_figures(figures, manifest)
        _print_masks(figures, masks)
        if options.figure is not None and folder == options.folder:
            from data_prep.mask_figure import draw_masks  # matplotlib takes a second to import

            draw_masks(masks, figures.runs, options.figure)
    if options.show:
        _show(folder, manifest, tokenizer, options.show)
    return problems


def _verify(
    folder: Path, manifest: Manifest, tokenizer: WordPiece, figures: Figures, masks: MaskStatistics
) -> list[str]:
    """Everything that can be found wrong with a folder; counts its sequences into `figures` and `masks`."""
    problems = [f"{folder}/{problem}" for problem in tokenizer_problems(folder, manifest)]
    if (folder / LOG_NAME).is_file():
        with RecordLog(folder, "rb") as log:
            if log.damaged or sum((record.books for record in log.chunks()), Books()) != manifest.books:
                problems.append(f"{log.path}: damaged, or not of this build")
    with Progress(sum(sum(shard.sizes.values()) for shard in manifest.shards), "verify") as progress:
        for shard in manifest.shards:
            found = checksum_problems(folder, shard)
            if not found:
                for rows in read_rows(folder, shard, manifest):
                    found += problems_of(rows, manifest)
                    if not found:
                        figures.add(rows, manifest)
                        masks.add(rows, manifest, tokenizer)
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
    size, name = sum(sum(shard.sizes.values()) for shard in manifest.shards), printable(str(folder))
    print(f"{name}: {totals.sequences:,} sequences in {len(manifest.shards)} shards, {size / 1e6:,.1f} MB")
    for name, ledger in _ledgers(manifest).items():
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in ledger.dropped.items() if count) or "none"
        print(
            f"  {name:<12} {ledger.read:>15,} read = {ledger.train:,} to train on + "
            f"{ledger.held_out:,} held out + dropped: {dropped}"
        )
    _print_books(manifest.books)
    drawn = " ".join(f"{count / max(1, sum(totals.ngrams)):.4f}" for count in totals.ngrams)
    asked = " ".join(f"{chance:.4f}" for chance in manifest.config.ngram)
    print(f"  unknown words   {totals.unknown_share:.4%} of the word pieces")
    print(f"  padding         {totals.padding_share:.2%} of {totals.sequences:,} x {manifest.seq_length}")
    print(f"  n-grams         {drawn} drawn, {asked} asked for")


def _print_books(books: Books) -> None:
    """What was mended, and what came from each input."""
    print(
        f"  mended          malformed UTF-8 {books.invalid_utf8:,} times, {books.normalized_documents:,} documents to "
        f"NFC, {books.cut_documents:,} documents and {books.cut_lines:,} lines cut for their length"
    )
    pieces = sum(share.word_pieces for share in books.inputs.values())
    for name, share in list(books.inputs.items())[:_INPUTS_SHOWN]:
        print(
            f"  input           {printable(name)}: {share.documents:,} documents, {share.characters:,} characters, "
            f"{share.word_pieces:,} word pieces ({share.word_pieces / max(1, pieces):.1%})"
        )
    if len(books.inputs) > _INPUTS_SHOWN:
        print(f"  and {len(books.inputs) - _INPUTS_SHOWN:,} inputs more")


def _print_figures(figures: Figures, manifest: Manifest) -> None:
    print(f"  of {figures.sequences:,} sequences and {manifest.mask_copies} masks each:")
    print(f"  two segments    {figures.pairs / max(1, figures.sequences):.1%}")
    print(f"  masked          {figures.masked / max(1, figures.mask_sites):.4%} of the tokens")


def _print_masks(figures: Figures, masks: MaskStatistics) -> None:
    """Where the masks fall; rates as multiples of a token's chance."""
    real, simulated = (runs[:9] / max(1, int(runs.sum())) for runs in (figures.runs, masks.simulated_runs))
    shares = [f"{length}: {share:.1%}" for length, share in enumerate(real)][1:]
    expected = [f"{length}: {share:.1%}" for length, share in enumerate(simulated)][1:]
    positions = [np.array_split(counts, _PARTS) for counts in (masks.position, masks.position_chance)]
    by_position = [f"{there.sum() / max(1e-9, chance.sum()):.3f}" for there, chance in zip(*positions, strict=True)]
    pieces = zip(masks.piece, masks.piece_chance, strict=True)
    by_piece = [f"{count / chance:.3f}" if chance else "none" for count, chance in pieces]
    print(f"  masked runs     {' '.join(shares)}")
    print(f"    simulated     {' '.join(expected)}")
    print(f"  by position     {' '.join(by_position)} times the chance, in eighths of the length")
    print(f"  by piece        {' '.join(by_piece)} times the chance, of a word's first, second, ... piece")
    cut = masks.words_cut / max(1, masks.masks)
    share = masks.words_cut / max(1, masks.words_masked)
    print(f"  words cut       {cut:.2f} a mask, {share:.1%} of the words masked, at most {masks.most_cut} by one mask")


def _show(folder: Path, manifest: Manifest, tokenizer: WordPiece, count: int) -> None:
    """Prints the first sequences, the tokens of their first mask [marked], or coloured on a terminal."""
    for rows in read_rows(folder, manifest.shards[0], manifest, limit=count):
        for number in range(min(count - rows.first, len(rows.lengths))):
            length = int(rows.lengths[number])
            tokens = [tokenizer.tokens[token] for token in rows.ids[number, :length]]
            print(f"\n{manifest.shards[0].name}, sequence {rows.first + number}, {length} tokens")
            print(_marked(tokens, rows.masked[number, 0]))


def _marked(tokens: list[str], masked: np.ndarray) -> str:
    """The text of the tokens, `##` pieces joined to their word where both or neither are masked."""
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    opening, closing = (_MARK, _PLAIN) if coloured else ("[", "]")
    words: list[str] = []
    for number, token in enumerate(tokens):
        joined = token.startswith(CONTINUATION) and number > 0
        text = token.removeprefix(CONTINUATION) if joined else token
        if masked[number]:
            text = f"{opening}{text}{closing}"
        elif coloured and token in SPECIAL_TOKENS:
            text = f"{_FAINT}{text}{_PLAIN}"
        if joined and words:
            words[-1] += text
        else:
            words.append(text)
    return " ".join(words)


if __name__ == "__main__":
    sys.exit(run_command(main, InspectOptions, __doc__))
