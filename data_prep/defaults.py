"""Default paths of the commands, and errors that name the next command when nothing is there yet.

Each message is one line that ends with a command ready to paste.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from foundation.config import ConfigError

RAW, VOCAB, SHARDS = Path("data/raw"), Path("data/vocab"), Path("data/wikibooks")
"""The user's own text, tokenizer folder or vocab.txt, and shards."""
QUICKSTART = Path("data/quickstart")
"""All data of the quickstart, which empties this data folder when it starts and touches no other."""
QUICKSTART_RAW, QUICKSTART_VOCAB, QUICKSTART_SHARDS = (QUICKSTART / name for name in ("raw", "vocab", "shards"))

_TRY_QUICKSTART = "python -m quickstart.run"


def require_text(inputs: Sequence[Path]) -> None:
    """Refuses the default input if it does not exist.

    Raises:
        ConfigError: the message ends with the next command: building shards from the quickstart's text if that
            exists, else the quickstart.
    """
    if tuple(inputs) != (RAW,) or RAW.exists():
        return
    command = _TRY_QUICKSTART
    if QUICKSTART_RAW.is_dir() and QUICKSTART_VOCAB.is_dir():
        paths = ("--input", QUICKSTART_RAW, "--vocab", QUICKSTART_VOCAB, "--output", QUICKSTART / "wikibooks")
        command = _python("data_prep.build_shards", *paths)
    raise ConfigError(
        f"input: {RAW} does not exist; put text there, name other text with --input, or try the quickstart: {command}"
    )


def require_vocab(vocab: str, inputs: Sequence[Path]) -> None:
    """Refuses the default vocabulary if it does not exist.

    Raises:
        ConfigError: it does not exist; the message ends with the command that trains one on `inputs`.
    """
    if vocab != str(VOCAB) or VOCAB.exists():
        return
    options: tuple[str | Path, ...] = () if tuple(inputs) == (RAW,) else ("--input", *inputs)
    raise ConfigError(
        f"vocab: {VOCAB} does not exist; put a vocab.txt or a tokenizer folder there, name one with --vocab, or"
        f" train one: {_python('data_prep.train_vocab', *options)}"
    )


def require_shards(folder: Path) -> None:
    """Refuses a shard folder, the default or another, that does not exist.

    Raises:
        ConfigError: the message ends with the next command: building the folder, training on the quickstart's
            shards, or the quickstart.
    """
    if folder.exists():
        return
    if folder != SHARDS and not folder.is_relative_to(QUICKSTART):
        command = _python("data_prep.build_shards", "--output", folder)
    elif folder == SHARDS and RAW.exists():
        command = _python("data_prep.build_shards")
    elif folder == SHARDS and QUICKSTART_SHARDS.is_dir():
        command = _python("pretrain.run", "--preset", "tiny", "--data", QUICKSTART_SHARDS)
    else:
        command = _TRY_QUICKSTART
    raise ConfigError(f"data: {folder} does not exist; name existing shards with --data, or run: {command}")


def _python(*arguments: str | Path) -> str:
    return shlex.join(("python", "-m", *map(str, arguments)))
