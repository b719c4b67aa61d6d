"""Default paths of the commands, and errors that name the next command when nothing is there yet."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from electra_sampler.foundation.config import ConfigError

RAW, VOCAB, SHARDS = Path("data/raw"), Path("data/vocab"), Path("data/wikibooks")
"""Default paths of the user's text, tokenizer folder or vocab.txt, and shards."""
_TRY_QUICKSTART = "try the quickstart: python -m electra_sampler.quickstart.run"


def require_text(inputs: Sequence[Path]) -> None:
    """Refuses the default input if it does not exist.

    Raises:
        ConfigError: it does not exist; the message ends with the command of the quickstart.
    """
    if tuple(inputs) == (RAW,) and not RAW.exists():
        raise ConfigError(
            f"input: {RAW} does not exist; put text there, name other text with --input, or {_TRY_QUICKSTART}"
        )


def require_vocab(vocab: str, inputs: Sequence[Path]) -> None:
    """Refuses the default vocabulary if it does not exist.

    Raises:
        ConfigError: it does not exist; the message ends with the command that trains one on `inputs`.
    """
    if vocab == str(VOCAB) and not VOCAB.exists():
        options = () if tuple(inputs) == (RAW,) else ("--input", *map(str, inputs))
        train = shlex.join(("python", "-m", "data_prep.train_vocab", *options))
        raise ConfigError(
            f"vocab: {VOCAB} does not exist; put a vocab.txt or a tokenizer folder there, name one with --vocab, or"
            f" train one: {train}"
        )


def require_shards(folder: Path) -> None:
    """Refuses a shard folder, the default or another, that does not exist.

    Raises:
        ConfigError: it does not exist; the message names the commands that build it and that run the quickstart.
    """
    if not folder.exists():
        build = shlex.join(("python", "-m", "data_prep.build_shards", "--output", str(folder)))
        raise ConfigError(
            f"data: {folder} does not exist; name existing shards with --data, build them: {build}; or "
            f"{_TRY_QUICKSTART}"
        )
