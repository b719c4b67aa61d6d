"""What a build would take, told by sending a sample of the input through it: `build_shards.py --dry_run`."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from data_prep.chunks import Chunk, sample_pieces
from data_prep.formats import Reading
from data_prep.output import prepare
from data_prep.pipeline import build_chunk, load_tools
from data_prep.punkt import PunktModel
from data_prep.records import Plan
from data_prep.sources import Source
from data_prep.tokens import WordPiece
from foundation.config import ConfigError
from foundation.progress import duration

SAMPLE = 1_000_000  # bytes


def estimate(
    plan: Plan, sources: Sequence[Source], tokenizer: WordPiece, punkt: PunktModel | None, workers: int
) -> str:
    """Files, chunks, time and disk, a line each. How much a dataset on the hub holds is known once it is streamed.

    Raises:
        ConfigError: the input cannot be read, or there is no text in the sample.
    """
    config = plan.config
    pieces = list(sample_pieces(sources, SAMPLE, Reading(config.documents, config.text_column)))
    sample = sum(piece.size for piece in pieces)
    if not sample:
        raise ConfigError("dry_run: a sample of the input has no text; build without --dry_run to see what is there")
    seconds, written = _measure(plan, Chunk(0, tuple(pieces)), tokenizer, punkt)
    speed = f"{sample / seconds / 1e6:.1f} MB/s each"
    on_disk = sum(source.size for source in sources)
    sample_on_disk = sum(piece.disk_bytes for piece in pieces)
    lines = []
    if sample_on_disk:
        text = sum(piece.size for piece in pieces if not piece.source.on_hub) * on_disk / sample_on_disk
        lines = [
            f"{sum(not source.on_hub for source in sources):,} files, {on_disk / 1e6:,.1f} MB on disk, about "
            f"{text / 1e6:,.1f} MB of text",
            f"about {max(1, round(text / config.chunk_mb / 1e6)):,} chunks of {config.chunk_mb:g} MB",
            f"about {duration(text * seconds / sample / workers)} with {workers} workers at {speed}",
            f"about {text * written / sample / 1e6:,.1f} MB of shards",
        ]
    if streamed := [str(source.path) for source in sources if source.on_hub]:
        lines.append(
            f"{', '.join(streamed)}: its size is not known before it is streamed; 1,000 MB of text take about "
            f"{duration(1e9 * seconds / sample / workers)} with {workers} workers at {speed}, if the network keeps up, "
            f"and {1000 * written / sample:,.0f} MB of shards"
        )
    return "\n".join(lines)


def _measure(plan: Plan, chunk: Chunk, tokenizer: WordPiece, punkt: PunktModel | None) -> tuple[float, int]:
    """Seconds that building the chunk takes, and bytes of its shards."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, tokenizer, punkt)
        load_tools(folder, plan.config.sentences)
        started = time.monotonic()
        record = build_chunk(chunk, "", plan.config, folder)
        seconds = time.monotonic() - started
    index = 2 * 20 - 4  # bytes a sequence has in the two indices, less its length in the part
    return seconds, sum(part.size + index * part.sequences for part in (record.train, record.held_out) if part)
