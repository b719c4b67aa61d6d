"""Runs google-research/electra's build_pretraining_dataset.py without TensorFlow: a peer of bench/data_prep.py.

    python bench/peers/electra_builder.py ELECTRA_FOLDER --corpus-dir ... --vocab-file ... --output-dir ...

Tokenizer and builder are the original ones in the given folder. Only TensorFlow's functions for files and records are
replaced: the same numbers are written as plain int32, which is faster and so favors the peer.
"""

import runpy
import shutil
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

import numpy as np


class _Example:
    def __init__(self, features: dict[str, list[int]]) -> None:
        self._features = features

    def SerializeToString(self) -> bytes:
        return np.fromiter(chain.from_iterable(self._features.values()), np.int32).tobytes()


def _opened(name: str, mode: str = "r") -> IO[Any]:
    return Path(name).open(mode)


def stand_in() -> dict[str, ModuleType]:
    """Returns substitutes, by module name, for `six` and for the parts of TensorFlow that the builder imports."""
    train = SimpleNamespace(
        Int64List=lambda value: value,
        Feature=lambda int64_list: int64_list,
        Features=lambda feature: feature,
        Example=lambda features: _Example(features),
    )
    gfile = SimpleNamespace(
        GFile=_opened,
        listdir=lambda name: [path.name for path in Path(name).iterdir()],
        exists=lambda name: Path(name).exists(),
        makedirs=lambda name: Path(name).mkdir(parents=True),
        rmtree=shutil.rmtree,
    )
    io = SimpleNamespace(gfile=gfile, TFRecordWriter=partial(_opened, mode="wb"))
    v1: Any = ModuleType("tensorflow.compat.v1")
    v1.io, v1.train, v1.gfile = io, train, gfile
    six: Any = ModuleType("six")
    six.PY2, six.PY3 = False, True
    return {
        "tensorflow": ModuleType("tensorflow"),
        "tensorflow.compat": ModuleType("tensorflow.compat"),
        "tensorflow.compat.v1": v1,
        "six": six,
    }


if __name__ == "__main__":
    folder = sys.argv.pop(1)
    sys.path[0] = folder
    modules = stand_in()
    compat: Any = modules["tensorflow.compat"]
    compat.v1 = modules["tensorflow.compat.v1"]
    sys.modules.update(modules)
    runpy.run_path(str(Path(folder) / "build_pretraining_dataset.py"), run_name="__main__")
